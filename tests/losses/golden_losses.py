"""Which overrides and which terms reproduce each golden loss."""

import loss_batches

SEQ = {"advantages": "adv_seq"}
SMALL = {"small": True}
MU = {"role": "behavior"}
PPO3 = {"name": "ppo", "dual_clip": 3.0}
GSPO_WIDE = {"clip_low": 0.2, "clip_high": 0.3}
CTPO_CODE = {
    "name": "ctpo", "dual_log_clip": 0.05, "aggregation": "token-mean"
}
CODE_FORM = {"surrogate": "weighted_log_prob", "weight_max": 3.0}
KL = {"divergence": "binary_kl"}

# Case: (overrides, how the golden batch becomes terms).
LOSSES = {
    "ppo_clip": ({"name": "ppo"}, {}),
    "ppo_dual_clip_c3": (PPO3, {}),
    "dapo_clip_higher": ({"name": "dapo"}, SEQ),
    "dapo_clip_higher_tokadv": ({"name": "dapo"}, {}),
    "grpo": ({"name": "grpo"}, SEQ),
    "dr_grpo": ({"name": "dr_grpo", "horizon": 8.0}, SEQ),
    "gspo_eps_3e-4_4e-4": ({"name": "gspo"}, SEQ),
    "gspo_wide_.2_.3": ({"name": "gspo", **GSPO_WIDE}, SEQ),
    "gspo_token_eps_3e-4_4e-4": ({"name": "gspo_token"}, {}),
    "gspo_token_eps_3e-4_4e-4_seqadv": ({"name": "gspo_token"}, SEQ),
    "gspo_token_wide_.2_.3": ({"name": "gspo_token", **GSPO_WIDE}, {}),
    "gspo_token_wide_.2_.3_seqadv": ({"name": "gspo_token", **GSPO_WIDE}, SEQ),
    "cispo_verl_script_low10_high.2": ({"name": "cispo"}, {}),
    "cispo_lo.2_hi.28": (
        {"name": "cispo", "weight_min": 0.8, "weight_max": 1.28}, {}
    ),
    "cispo_scaleRL_max5 (1+hi=5)": ({"name": "cispo", "weight_max": 5.0}, {}),
    "ctpo_paper": ({"name": "ctpo"}, SMALL),
    "ctpo_code_dualclip_la_c=.05": (CTPO_CODE, SMALL),
    "ctpo_code_dualclip_toolmask": (CTPO_CODE, SMALL | {"mask": "mask_tool"}),
    "ctpo_p0_constant_log_bounds": ({"name": "ctpo", "power": 0.0}, SMALL),
    "cppo_paper_delta.15_deltab.02_fixed": (
        {"name": "cppo_prefix", "delta_b": 0.02}, MU
    ),
    "cppo_delta.23_deltab.14_T=length": (
        {"name": "cppo_prefix", "delta": 0.23, "delta_b": 0.14}, MU
    ),
    "cppo_soft_gate_delta.15_deltab.02": (
        {"name": "cppo_prefix", "delta_b": 0.02, "gate": "soft"}, MU
    ),
    "ppo_x_tis2": ({**PPO3, "correction": "tis"}, {}),
    "ppo_x_icepop": ({**PPO3, "correction": "icepop"}, {}),
    "ppo_x_token_rejection[0.5,2]": ({**PPO3, "correction": "mis"}, {}),
    "decoupled_ppo_uncapped": ({"name": "decoupled_ppo"}, {}),
    "decoupled_ppo_tokenmask_cap5": (
        {"name": "decoupled_ppo", "decoupled_cap": 5.0}, {}
    ),
    "decoupled_ppo_tokenclamp_cap5": (
        {
            "name": "decoupled_ppo",
            "decoupled_cap": 5.0,
            "decoupled_action": "clamp",
        },
        {},
    ),
    "sapo_tau1_1.05": ({"name": "sapo"}, {}),
    "espo_unclipped_surrogate": ({"name": "espo"}, {}),
    "acpo_advclip_alpha3": ({"name": "acpo_advantage"}, {}),
    "acpo_advclip_alpha2": ({"name": "acpo_advantage", "alpha": 2.0}, {}),
    "acpo_adaptive_code_main(alpha3,min0,max3)": (
        {"name": "acpo_adaptive"}, {}
    ),
    "acpo_adaptive_code_default(alpha1,min.05,max.5)": (
        {
            "name": "acpo_adaptive",
            "epsilon_slope": 1.0,
            "epsilon_min": 0.05,
            "epsilon_max": 0.5,
            "statistics_scope": "microbatch",
        },
        {},
    ),
    "acpo_adaptive_behaviour_prob_bins(alpha1,.05,.5)": (
        {
            "name": "acpo_adaptive",
            "epsilon_slope": 1.0,
            "epsilon_min": 0.05,
            "epsilon_max": 0.5,
            "bin_by": "behavior",
        },
        {"behavior_logprobs": loss_batches.GOLDEN["inputs"]["logp_old"]},
    ),
    "dppo_binary_tv_.15": ({"name": "dppo_divergence"}, MU),
    "dppo_binary_tv_.15_code_form_c3": (
        {"name": "dppo_divergence", **CODE_FORM}, MU
    ),
    "dppo_binary_kl_.05": ({"name": "dppo_divergence", **KL}, MU),
    "dppo_binary_kl_.05_code_form_c3": (
        {"name": "dppo_divergence", **KL, **CODE_FORM}, MU
    ),
    "bypass_reinforce_tis2": (
        {"name": "bypass_reinforce"},
        {
            "role": "behavior",
            "behavior_logprobs": loss_batches.GOLDEN["inputs"]["logp_rollout"],
        },
    ),
    "topr_paper_sequence_ratio": ({"name": "topr"}, MU | SEQ),
    "topr_ROLL_token_ratio": (
        {
            "name": "topr",
            "ratio": "token",
            "aggregation": "seq-mean-token-sum",
        },
        MU | SEQ,
    ),
}
