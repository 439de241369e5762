"""Every key of the main job, with unit and meaning.

Other files in this folder call `base.get_config()` and override a handful.
A value of `placeholder(...)` is unset: the default that the comment names
applies.
"""

import ml_collections
from ml_collections import config_dict


def get_config() -> ml_collections.ConfigDict:
  """Returns the defaults: a tiny random model on one-digit arithmetic."""
  placeholder = config_dict.placeholder
  config = ml_collections.ConfigDict()
  # Root of every random stream: sampling, data order, trainer noise.
  config.seed = 0
  # Devices per mesh axis; axes are data, fsdp and tensor. Rows of a batch and
  # slots lie over data × fsdp, widths over fsdp, heads and ids over tensor.
  config.mesh = "data=1"

  config.distributed = ml_collections.ConfigDict()
  # host:port of process 0, where a job runs as several processes; empty takes
  # what SLURM, Open MPI or a Cloud TPU says, and one process where none does.
  config.distributed.coordinator = ""
  # Processes in all; read with a coordinator.
  config.distributed.process_count = 1
  # Number of this process, from 0; read with a coordinator.
  config.distributed.process_index = 0
  # K/N: generate every N-th shard of a round, from shard K on (from 0),
  # knowing nothing of the others. `--worker=K/N` is short for it.
  config.distributed.worker = ""

  config.model = ml_collections.ConfigDict()
  # A Hugging Face folder, a .gguf file, or empty for `preset`.
  config.model.path = ""
  # Random weights of a named size, used when `path` is empty.
  config.model.preset = "tiny"
  # Tokenizer folder or file; empty takes the model's own.
  config.model.tokenizer = ""
  # Inputs of matrix products: bfloat16 or float32. Masters are float32.
  config.model.compute_dtype = "bfloat16"
  # What the backward pass recomputes of each layer: none, products (all but
  # what its matrix products need), layers (all; the least memory).
  config.model.remat = "products"
  # Rank of the adapters that are trained in the place of the weights (LoRA);
  # 0 trains the weights.
  config.model.lora_rank = 0
  # alpha: adapters count alpha / rank times; unset: twice the rank.
  config.model.lora_alpha = placeholder(float)
  # Matrices with adapters, comma-separated: query, key, value, output, gate,
  # up, down; unset: all of them.
  config.model.lora_targets = placeholder(str)
  # What the weights beside adapters are stored in: float32, bfloat16, or int8
  # (matrices of the layers; the rest bfloat16); unset: bfloat16.
  config.model.lora_base_dtype = placeholder(str)

  config.prompts = ml_collections.ConfigDict()
  # reasoning_gym, jsonl (JSON lines or one JSON array) or tfds.
  config.prompts.source = "reasoning_gym"
  # Task name in reasoning-gym.
  config.prompts.task = "basic_arithmetic"
  # Arguments of the task, as a JSON object.
  config.prompts.task_args = (
      '{"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}'
  )
  # File (jsonl) or prepared folder (tfds).
  config.prompts.path = ""
  # Field of jsonl and tfds records that holds the problem; several,
  # comma-separated, are joined by line breaks.
  config.prompts.question_field = "question"
  # Field that holds the answer; empty guesses it from the GSM8K and MATH
  # shapes.
  config.prompts.answer_field = ""
  # Items drawn from the source before duplicates are removed; 0 takes a whole
  # file.
  config.prompts.count = 4096
  # Problems held out for evaluation, chosen by a hash of the problem.
  config.prompts.eval_count = 200
  # Share of all problems, by that hash, that is never trained on; the
  # evaluated ones are taken from it.
  config.prompts.eval_share = 0.2
  # System message; empty leaves the chat template's own default.
  config.prompts.system = ""
  # User message; {question} stands for the problem.
  config.prompts.template = "{question}"
  # Longest prompt in tokens; a longer one is an error unless dropped.
  config.prompts.max_tokens = 128
  # Drop longer prompts, and say how many, instead of refusing to start.
  config.prompts.drop_long = False

  config.sampling = ml_collections.ConfigDict()
  # Divides the logits; the ratios of training use the same temperature.
  config.sampling.temperature = 1.0
  # Sample among this many most likely tokens; 0 disables.
  config.sampling.top_k = 0
  # Sample among the fewest tokens with this share of the mass; 1 disables.
  config.sampling.top_p = 1.0
  # Sample among tokens with at least this share of the best token's
  # probability; 0 disables.
  config.sampling.min_p = 0.0
  # Response limit in tokens.
  config.sampling.max_new_tokens = 16
  # Top-K ids of the behaviour policy kept per token; 0 records none.
  config.sampling.record_topk = 0

  config.generation = ml_collections.ConfigDict()
  # Distinct problems posed per round.
  config.generation.prompts_per_round = 16
  # Responses per problem: the size of a group.
  config.generation.samples_per_prompt = 8
  # Responses decoded at once, a multiple of the mesh's data × fsdp.
  config.generation.slots = 32
  # Prompts per prefill call.
  config.generation.prefill_rows = 8
  # Padded prompt lengths, in tokens, that are compiled; ascending.
  config.generation.prompt_buckets = (64, 128)
  # Tokens decoded between two refills of finished slots.
  config.generation.steps_per_call = 8
  # Records of one shard, the unit of generation and of resuming.
  config.generation.records_per_shard = 64
  # New tokens of a response in a round at most; a longer one goes on in the
  # next round, with the policy of that round. 0 lets each end in its own.
  config.generation.window = 0
  # Whether the weights that sampling reads stay spread over the mesh's axis
  # fsdp. That holds 1 / fsdp of them per device and gathers each of them for
  # every token; False has them whole there, spread over tensor alone.
  config.generation.spread_weights = False

  config.allocation = ml_collections.ConfigDict()
  # How a round shares out its prompts_per_round × samples_per_prompt
  # responses: uniform, cero, knapsack, gvm, reinforce_ada, dapo, codapo,
  # dppo_pruning or spo. Every other key is unset: the registry's value
  # applies. Setting a key that the chosen method does not read is an error.
  config.allocation.name = "uniform"
  # Responses that are given together (cero, gvm).
  config.allocation.unit = placeholder(int)
  # N_max: units of a prompt in a round (cero).
  config.allocation.unit_limit = placeholder(int)
  # C: units of a round at most; unset: 33/32 of its budget (cero).
  config.allocation.capacity = placeholder(int)
  # λ: how soon the utility of a prompt's rollouts saturates (cero).
  config.allocation.curvature = placeholder(float)
  # Share of a posterior's evidence that is kept per round (cero).
  config.allocation.forgetting = placeholder(float)
  # a of the Beta prior of a success rate (cero, spo).
  config.allocation.prior_correct = placeholder(float)
  # b of the Beta prior of a success rate (cero, spo).
  config.allocation.prior_wrong = placeholder(float)
  # Price of the budget in the first round, 0 to 1 (cero).
  config.allocation.budget_price = placeholder(float)
  # Step of the prompts' prices; unset: 1/√run.rounds (cero).
  config.allocation.price_step = placeholder(float)
  # Step of the budget's price; unset: 1/√run.rounds (cero).
  config.allocation.budget_step = placeholder(float)
  # Responses at least of a prompt that is solved at times (knapsack).
  config.allocation.min_samples = placeholder(int)
  # Responses of a prompt at most (knapsack).
  config.allocation.max_samples = placeholder(int)
  # Responses of a prompt that was never solved (knapsack).
  config.allocation.negative_samples = placeholder(int)
  # Responses of a prompt that was always solved (knapsack).
  config.allocation.positive_samples = placeholder(int)
  # Newest rewards of a prompt that its success rate is read from (knapsack).
  config.allocation.reward_buffer = placeholder(int)
  # Rewards from which on a success rate counts as known (knapsack).
  config.allocation.min_buffer = placeholder(int)
  # Rollouts that a prompt needs: probability or expectation (knapsack).
  config.allocation.cost = placeholder(str)
  # Probability of unequal rewards that cost=probability asks for (knapsack).
  config.allocation.confidence = placeholder(float)
  # α: keeps rarely solved prompts from taking all (gvm).
  config.allocation.rate_penalty = placeholder(float)
  # β: exponent of the success rate in that penalty (gvm).
  config.allocation.rate_power = placeholder(float)
  # Responses of a prompt that enter the update, half of each kind; all enter
  # its baseline (reinforce_ada).
  config.allocation.group = placeholder(int)
  # Rounds that a prompt stays at most (reinforce_ada).
  config.allocation.max_repeats = placeholder(int)
  # When a prompt leaves: balanced or positive_focused (reinforce_ada).
  config.allocation.leave = placeholder(str)
  # Prompts of the first round per wanted prompt (dapo).
  config.allocation.oversampling = placeholder(float)
  # Prompts of a round per wanted prompt at most (dapo).
  config.allocation.max_batches = placeholder(int)
  # Probability that a prompt below the threshold is left out (dppo_pruning).
  config.allocation.prune_probability = placeholder(float)
  # Mean |A| of a prompt's last visit below which that happens; unset: the mean
  # over the round's prompts that were posed before (dppo_pruning).
  config.allocation.prune_threshold = placeholder(float)
  # Prompts of a round that the next one poses again (codapo).
  config.allocation.top_k = placeholder(int)
  # Weight of a prompt that is solved always or never (spo).
  config.allocation.exploration = placeholder(float)
  # Token mean of |Δ log π| between two visits of a prompt, nats (spo).
  config.allocation.drift = placeholder(float)
  # Drift at which half of a tracker's evidence is kept, nats (spo).
  config.allocation.half_life = placeholder(float)
  # Share of evidence that is kept at least (spo).
  config.allocation.forgetting_min = placeholder(float)
  # Share of evidence that is kept at most (spo).
  config.allocation.forgetting_max = placeholder(float)

  config.reward = ml_collections.ConfigDict()
  # reasoning_gym (the task's own scorer), math (final answer compared
  # symbolically) or last_number (last number of the text).
  config.reward.verifier = "last_number"
  # Weight of a correct answer in the total reward.
  config.reward.correct_weight = 1.0
  # Weight of a complete statement of the answer (a box, a tag, "the answer
  # is"), correct or not.
  config.reward.format_weight = 0.0
  # Seconds until a verifier counts as failed.
  config.reward.timeout = 5.0

  config.objective = ml_collections.ConfigDict()
  # Name in the registry; see `describe`. Every other key is unset: the
  # registry's value applies. Setting a key that the chosen parts do not have
  # is an error.
  config.objective.name = "ctpo"
  # Policy under the ratio: proximal, behavior or, for dpo, reference.
  config.objective.anchor = placeholder(str)
  # Proximal log-probs: recomputed by the trainer, or loglinear between
  # behavior and live by policy version.
  config.objective.proximal = placeholder(str)
  # For the gap between behavior and proximal: none, tis, icepop, decoupled,
  # rejection, bypass (mis = rejection); join a weight and rejection by +.
  config.objective.correction = placeholder(str)
  # How token ratios combine: token, cumulative, cumulative_mean, sequence,
  # sequence_mean, sequence_mean_token.
  config.objective.ratio = placeholder(str)
  # Wrapper that exempts tokens: none, sis.
  config.objective.selection = placeholder(str)
  # Loss of a token: ratio, weighted_log_prob, log_prob, sigmoid, preference.
  config.objective.surrogate = placeholder(str)
  # Which tokens an update may move: none, clip, position_clip,
  # prefix_budget, divergence, product_clip, adaptive_clip, taper.
  config.objective.trust_region = placeholder(str)
  # Denominator of the policy loss: token-mean, seq-mean-token-mean,
  # seq-mean-token-sum, seq-mean-token-sum-norm, token-sum.
  config.objective.aggregation = placeholder(str)
  # Advantage of a response: group_std, group_mean, leave_one_out, reward,
  # whitened, group_whitened, greedy_baseline, imitation, or a critic's: gae,
  # static_value.
  config.objective.advantage = placeholder(str)
  # K of the sis envelope: top ids of the anchor policy.
  config.objective.selection_topk = placeholder(int)
  # Sis: reject every token outside the top-K whose ratio is not 1.
  config.objective.require_membership = placeholder(bool)
  # Lower bound of the detached ratio weight, absolute.
  config.objective.weight_min = placeholder(float)
  # Upper bound of the detached ratio weight, absolute.
  config.objective.weight_max = placeholder(float)
  # Sigmoid temperature where A > 0, per unit of ratio.
  config.objective.tau_positive = placeholder(float)
  # Sigmoid temperature where A <= 0, per unit of ratio.
  config.objective.tau_negative = placeholder(float)
  # Preference pairs of a group: all with unequal rewards, or best_worst (the
  # highest against the lowest; of equal ones the first record).
  config.objective.pairs = placeholder(str)
  # β of the preference loss, per nat of log π − log reference.
  config.objective.dpo_beta = placeholder(float)
  # Share of preference pairs taken to be the wrong way round.
  config.objective.label_smoothing = placeholder(float)
  # ε_lo: with A < 0, ratios below 1 − ε_lo are cut.
  config.objective.clip_low = placeholder(float)
  # ε_hi: with A > 0, ratios above 1 + ε_hi are cut.
  config.objective.clip_high = placeholder(float)
  # c: tokens with A < 0 and ratio > c are cut; unset: none.
  config.objective.dual_clip = placeholder(float)
  # ε_lo in nats: log-ratios below −ε_lo t^power are cut.
  config.objective.log_clip_low = placeholder(float)
  # ε_hi in nats: log-ratios above ε_hi t^power are cut.
  config.objective.log_clip_high = placeholder(float)
  # Exponent of the response position t (from 1) in the log bounds.
  config.objective.power = placeholder(float)
  # Nats: with A < 0, log-ratios above this times t^power are cut; unset:
  # none.
  config.objective.dual_log_clip = placeholder(float)
  # D(anchor || live) that the region tests: binary_tv, binary_kl, topk_tv
  # or topk_kl.
  config.objective.divergence = placeholder(str)
  # K of topk_tv and topk_kl: top ids of the anchor policy.
  config.objective.divergence_topk = placeholder(int)
  # Sampled token outside the top-K: union adds it, replace drops the last
  # of the top-K for it.
  config.objective.topk_add = placeholder(str)
  # δ: largest divergence of one token; unset: 0.15 for TV, 0.05 for KL
  # (divergence) or 0.1 for KL (prefix_budget).
  config.objective.delta = placeholder(float)
  # δ_b: divergence that each token of the prefix adds to the budget, floor
  # of a dynamic budget; unset: 0.015 for TV, 0.002 for KL.
  config.objective.delta_b = placeholder(float)
  # ω_min: weight of the last response token's divergence; the first's is 1.
  config.objective.omega_min = placeholder(float)
  # δ_b: fixed, or dynamic (a quantile of the sequence's divergences).
  config.objective.budget = placeholder(str)
  # Quantile of a dynamic budget, linear.
  config.objective.budget_quantile = placeholder(float)
  # A dynamic δ_b is at most this many times its floor.
  config.objective.budget_cap = placeholder(float)
  # Tokens over budget: hard drops them, soft scales them by 1/excess.
  config.objective.gate = placeholder(str)
  # α: tokens with |r A| > α are cut.
  config.objective.alpha = placeholder(float)
  # A token with |r A| exactly α: keep its gradient, or cut (strict).
  config.objective.boundary = placeholder(str)
  # Clip width of a bin whose ratios are equal.
  config.objective.epsilon_base = placeholder(float)
  # Clip width added per unit of the bin's std of ratios.
  config.objective.epsilon_slope = placeholder(float)
  # Smallest adaptive clip width.
  config.objective.epsilon_min = placeholder(float)
  # Largest adaptive clip width.
  config.objective.epsilon_max = placeholder(float)
  # Equal bins of [0, 1] that tokens fall into by probability.
  config.objective.probability_bins = placeholder(int)
  # Probability that bins a token: of the current or the behavior policy.
  config.objective.bin_by = placeholder(str)
  # Tokens behind the std: minibatch, or microbatch (results then depend on
  # the micro-batch size).
  config.objective.statistics_scope = placeholder(str)
  # Branch of a reward of exactly 0: positive (weight 1) or negative (weight
  # min(ratio, 1)).
  config.objective.taper_zero = placeholder(str)
  # Tokens by which seq-mean-token-sum-norm divides a response's sum.
  config.objective.horizon = placeholder(float)
  # λ of the advantages (gae).
  config.objective.lambda_actor = placeholder(float)
  # α: λ of the advantages is 1 − 1/(α l), at least 0, for a response of l
  # tokens; unset: lambda_actor.
  config.objective.lambda_alpha = placeholder(float)
  # λ of the critic's targets; unset: lambda_actor, and 1 beside lambda_alpha.
  config.objective.lambda_critic = placeholder(float)
  # Advantages are whitened over the response tokens of a rollout batch.
  config.objective.whitened = placeholder(bool)
  # A value further than this from the one before the first update counts with
  # the larger of its own and the clipped value's error; 0: none.
  config.objective.value_clip = placeholder(float)
  # Responses that the critic learns from: all, or finished (those that no
  # later window continues, from their first token).
  config.objective.value_targets = placeholder(str)
  # Degrees of freedom taken off in the group's std.
  config.objective.std_ddof = placeholder(int)
  # Added to the group's std, in units of reward.
  config.objective.std_epsilon = placeholder(float)
  # Advantage of a group of one: zero, or verl's (the reward itself, over 1
  # + std_epsilon with group_std).
  config.objective.singleton = placeholder(str)
  # Γ per token of the reward to go.
  config.objective.discount = placeholder(float)
  # Remax: R − greedy R is cut to ± this and a token adds its own reward
  # only; unset: reward to go, uncut.
  config.objective.difference_clip = placeholder(float)
  # Imitation: reward above which a response is imitated; the others enter
  # neither the loss nor its denominator.
  config.objective.imitate_above = placeholder(float)
  # C: largest weight of tis, w = proximal/behavior.
  config.objective.correction_cap = placeholder(float)
  # Weights per token, per sequence (product of the tokens') or geometric
  # (their geometric mean).
  config.objective.correction_level = placeholder(str)
  # Divide weights by their mean over the mini-batch.
  config.objective.correction_normalize = placeholder(bool)
  # Icepop: weights below this become 0.
  config.objective.correction_low = placeholder(float)
  # Icepop: weights above this become 0.
  config.objective.correction_high = placeholder(float)
  # Cap of the decoupled weight w; unset: none.
  config.objective.decoupled_cap = placeholder(float)
  # Decoupled weights above the cap: mask zeroes, clamp lowers them.
  config.objective.decoupled_action = placeholder(str)
  # Largest accepted w (k1) or statistic (k2, k3).
  config.objective.rejection_high = placeholder(float)
  # Smallest accepted w of k1; unset: 1/rejection_high.
  config.objective.rejection_low = placeholder(float)
  # Weights per token, per sequence (product of the tokens') or geometric
  # (their geometric mean).
  config.objective.rejection_level = placeholder(str)
  # Test on w: k1 (w), k1_inverse (1/w), k2 (½ log²w), k3 (w − 1 − log w).
  config.objective.rejection_statistic = placeholder(str)
  # Tokens that the denominator counts: kept, or original (all).
  config.objective.rejection_denominator = placeholder(str)
  # Weight of the KL to the reference in the loss.
  config.objective.kl_coefficient = placeholder(float)
  # Per-token KL estimator in the loss: k1, k2 or k3.
  config.objective.kl_estimator = placeholder(str)
  # Weight of the entropy bonus, subtracted from the loss.
  config.objective.entropy_coefficient = placeholder(float)
  # Weight of the mean NLL over the tokens of responses with a reward above 0
  # (vapo).
  config.objective.positive_coefficient = placeholder(float)
  # Response tokens at which the overlong penalty is −1; unset: none.
  config.objective.overlong_limit = placeholder(int)
  # Tokens before overlong_limit over which the penalty grows.
  config.objective.overlong_buffer = placeholder(int)
  # Reward taken off at overlong_limit.
  config.objective.overlong_factor = placeholder(float)
  # Beyond overlong_limit: piecewise stays, linear keeps growing.
  config.objective.overlong_form = placeholder(str)
  # Weight of log proximal − log reference taken off each token's reward.
  config.objective.kl_reward_coefficient = placeholder(float)
  # Epochs on a rollout batch end before an update whose token mean of
  # |ratio − 1| exceeds this; unset: never.
  config.objective.stop_deviation = placeholder(float)

  config.critic = ml_collections.ConfigDict()
  # Read where objective.advantage is gae or static_value: what gives the
  # values of tokens, network (one of its own; the default) or head (on the
  # policy's hidden states). Either has its own optimizer; the value loss never
  # moves the policy.
  config.critic.kind = placeholder(str)
  # Model that a network of its own starts from; unset: the start policy.
  config.critic.path = placeholder(str)
  # Step size; unset: twice train.learning_rate.
  config.critic.learning_rate = placeholder(float)
  # Updates of linear warm-up (0).
  config.critic.warmup_updates = placeholder(int)
  # Passes over a rollout batch, before the policy's own (1).
  config.critic.epochs = placeholder(int)
  # Rounds at the start that train the critic alone, with the policy as it is
  # (0). A critic that is frozen afterwards (dvpo) needs at least one.
  config.critic.pretrain_rounds = placeholder(int)

  config.curation = ml_collections.ConfigDict()
  # Which episodes of a rollout batch count, and how much: none, codapo,
  # cppo_completion, dppo_pruning, ippo or ps_ppo. Every other key is unset:
  # the registry's value applies. Setting one that the method lacks is an
  # error.
  config.curation.name = "none"
  # Ippo: loss behind the validation gradient: sft (NLL of validation records
  # with a positive reward; the default), policy_gradient (their advantages),
  # or batch (the rollout batch's own advantages).
  config.curation.validation = placeholder(str)
  # Ippo with sft or policy_gradient: shard folders of the validation records,
  # comma-separated.
  config.curation.validation_rollouts = placeholder(str)
  # Ippo: weigh survivors by score over their mean score (True), else by 1.
  config.curation.reweight = placeholder(bool)
  # Ippo: divide the validation gradient by the root of Adam's second moments;
  # before the first update there are none (False).
  config.curation.precondition = placeholder(bool)
  # Ippo with sft or policy_gradient: rollout batches from one validation
  # gradient to the next; the one in between is stored (1: each its own).
  config.curation.refresh_batches = placeholder(int)
  # Ippo: a rollout batch with a smaller share of survivors gets no update;
  # unset: never.
  config.curation.stop_share = placeholder(float)
  # Cppo_completion: share of completions that is dropped, those with the
  # smallest |A| (0.5).
  config.curation.prune_share = placeholder(float)
  # Dppo_pruning: probability of dropping a completion with |A| below the
  # threshold (0.5).
  config.curation.prune_probability = placeholder(float)
  # |A| that cppo_completion keeps from instead of a share, or below which
  # dppo_pruning drops (there unset: the mean |A|).
  config.curation.prune_threshold = placeholder(float)
  # Completions that are compared: those of a question, or of the rollout
  # batch (question).
  config.curation.prune_scope = placeholder(str)
  # Ps_ppo: probability that a response stays whole; its inverse is the
  # largest weight of a token (0.4).
  config.curation.full_probability = placeholder(float)
  # Ps_ppo: shortest prefix as a share of the response's tokens (0).
  config.curation.min_prefix = placeholder(float)
  # Codapo: added to a question's value; 0.1 keeps questions that all or none
  # solve (0).
  config.curation.weight_offset = placeholder(float)
  # Codapo: policy whose log-probs give the confidence: proximal or behavior
  # (proximal).
  config.curation.confidence_from = placeholder(str)
  # Codapo: mean over questions of their token means (question), or the
  # objective's aggregation (objective); question.
  config.curation.loss_average = placeholder(str)

  config.train = ml_collections.ConfigDict()
  # Shard folders that the `train` verb consumes, comma-separated.
  config.train.rollouts = ""
  # Passes over each rollout batch.
  config.train.epochs = 2
  # Groups per rollout batch for a frozen folder; 0 takes a whole round.
  config.train.groups_per_batch = 0
  # Groups per update at most; a rollout batch is cut evenly.
  config.train.groups_per_minibatch = 8
  # Packed rows per micro-batch, a multiple of the mesh's data × fsdp.
  config.train.rows_per_microbatch = 8
  # Tokens per packed row; the longest sequence must fit.
  config.train.tokens_per_row = 128
  # Peak step size of AdamW.
  config.train.learning_rate = 1e-3
  # Updates of linear warm-up.
  config.train.warmup_updates = 0
  # After the warm-up: constant, or cosine to 0 over total_updates.
  config.train.schedule = "constant"
  # Updates until a cosine schedule reaches 0; read by that schedule only.
  config.train.total_updates = placeholder(int)
  # Decay of AdamW's mean of gradients.
  config.train.beta1 = 0.9
  # Decay of AdamW's mean of squared gradients.
  config.train.beta2 = 0.95
  # Added to the root of the squared mean.
  config.train.epsilon = 1e-8
  # Decoupled weight decay, times the step size.
  config.train.weight_decay = 0.0
  # Gradients are scaled down to this global norm.
  config.train.max_grad_norm = 1.0
  # Non-finite updates in a row that stop the run.
  config.train.max_bad_updates = 5
  # Updates by which the oldest token of a record may lag; unset: no limit.
  config.train.max_staleness = placeholder(int)
  # Keep groups whose rewards are all equal although their advantage is 0. An
  # objective without a group baseline always keeps them.
  config.train.keep_uniform_groups = False
  # Reference policy for KL terms: a model path; empty takes the start policy.
  config.train.reference = ""
  # What its weights are stored in: float32, bfloat16, or int8 (matrices of the
  # layers; the rest bfloat16); unset: float32, or what the base of adapters is
  # in where that is the reference.
  config.train.reference_dtype = placeholder(str)
  # Chooses the bound of objective.trust_region=clip anew each round: none,
  # ucb1 (on mean rewards), pb_ppo (the rule of its official code).
  config.train.clip_bandit = "none"
  # Bounds that a bandit chooses from: clip_low = clip_high.
  config.train.clip_arms = (0.02, 0.116, 0.212, 0.308, 0.404, 0.5)
  # Weight of the bandit's bonus for bounds that were tried less.
  config.train.clip_exploration = 5.0
  # Decay of pb_ppo's sums of rewards, per choice of the bound.
  config.train.clip_discount = 0.99
  # Updates between checkpoints inside a round (one is written at its end).
  config.train.checkpoint_every = 100
  # Newest checkpoints kept; older ones are deleted.
  config.train.checkpoints_kept = 2

  config.run = ml_collections.ConfigDict()
  # Rounds of generate → train; may be raised later to go on.
  config.run.rounds = 2

  config.evaluation = ml_collections.ConfigDict()
  # Responses per problem.
  config.evaluation.samples = 4
  # Sampling temperature; top_k, min_p and the length limit are `sampling`'s.
  config.evaluation.temperature = 1.0
  # As sampling.top_p.
  config.evaluation.top_p = 1.0
  # k of pass@k, comma-separated, each ≤ samples.
  config.evaluation.pass_at = "1,4"
  # What the `evaluate` verb measures: "model" is the start policy, a number
  # the checkpoint of that update; empty takes the latest checkpoint under
  # --workdir, else the model.
  config.evaluation.checkpoint = ""
  # Confidence level of intervals.
  config.evaluation.confidence = 0.95
  # Rounds between evaluations inside `run`; 0 evaluates before and after only.
  config.evaluation.every_rounds = 0

  config.lab = ml_collections.ConfigDict()
  # Objectives that are compared, comma-separated: [LABEL=]NAME[:KEY=VALUE…]
  # with the name and the keys of `objective`, as tis=ppo:correction=tis; or
  # all: every name of the registry, what cannot be compared with its reason.
  config.lab.objectives = "all"
  # Given as objective.correction to those that name none and would hide
  # staleness: none, bypass (their ratio is live/behavior), or another.
  config.lab.correction = "none"
  # Replay: shard folders that all objectives read, comma-separated.
  config.lab.shards = ""
  # Replay: checkpoint folder (checkpoints/step_N) that all objectives start
  # from; empty takes the model.
  config.lab.checkpoint = ""
  # Replay: updates between the first and the second table.
  config.lab.updates = 4
  # Replay: the exact policy gradient is taken where the prompts of a
  # mini-batch have at most this many possible responses in all; 0: never.
  config.lab.exact_limit = 300_000
  # Staleness: working directories of `run`, one per seed, comma-separated;
  # empty makes them below --workdir.
  config.lab.versions = ""
  # Staleness: rounds between the policy that wrote the shards and the one that
  # is trained on them; ascending.
  config.lab.lags = (0, 1, 2, 4)
  # Staleness: seeds of whole repetitions: versions, training and evaluation.
  config.lab.seeds = (0, 1)

  config.report = ml_collections.ConfigDict()
  # Working directories to show side by side, comma-separated; empty shows
  # --workdir. The page is written under --workdir.
  config.report.workdirs = ""
  # Responses of the newest round that are shown token by token; 0 shows none
  # and reads no model.
  config.report.samples = 6

  config.export = ml_collections.ConfigDict()
  # Update whose checkpoint is written; empty takes the latest one.
  config.export.checkpoint = ""
  # Folder to write; empty is `export` under --workdir.
  config.export.folder = ""
  # model: all weights, adapters merged into them; or peft: the adapters alone,
  # as PEFT reads them.
  config.export.format = "model"

  config.compile = ml_collections.ConfigDict()
  # TPU slice to compile for, chip and shape: v5e, v5p or v6e, as v5e:4x4 or
  # v5p:4x4x4.
  config.compile.topology = "v5e:4x4"
  # What is compiled, comma-separated: add (a micro-batch), update (the
  # optimizer), critic_values, critic_add, critic_update (of an objective with
  # a critic), weights (laid out for sampling), prefill, fill (slots), decode.
  # Empty is all that the job runs.
  config.compile.programs = ""

  config.import_rollouts = ml_collections.ConfigDict()
  # JSON-lines or Parquet files, comma-separated; a name with * is a pattern.
  config.import_rollouts.files = ""
  # Layout of the files: jaxrl_llm (of export-rollouts), openai_chat,
  # openai_completions, vllm, verl, verl_agent_loop, trl, trl_rollout,
  # trl_completions or open_instruct. The keys below are for the others than
  # jaxrl_llm.
  config.import_rollouts.format = "jaxrl_llm"
  # Fields that lie elsewhere than the layout says, as
  # reward=meta.score,logprobs=choices.*.lp; * is the number of the response
  # within the row, an empty path unmaps a field. Fields: responses (the list
  # of a row's responses), prompt_tokens, prompt_text, messages, question,
  # response_tokens, token_texts, response_text, response_mask, tool_called,
  # logprobs, log_kept_mass, reward, reference_answer, finish_reason, group
  # (paths joined by +; unmapped: prompt and policy version), policy_version,
  # temperature, top_p, top_k, min_p.
  config.import_rollouts.fields = ""
  # Round that the shards belong to.
  config.import_rollouts.round = 0
  # Policy version of rows without one.
  config.import_rollouts.policy_version = 0
  # Sampling temperature of rows without one; unset: they are refused.
  config.import_rollouts.temperature = placeholder(float)
  # Top_p, top_k (0: off) and min_p (unset: off) of rows without them.
  config.import_rollouts.top_p = placeholder(float)
  # See top_p.
  config.import_rollouts.top_k = placeholder(int)
  # See top_p.
  config.import_rollouts.min_p = placeholder(float)
  # What the log-probs are of: sampled (after temperature and truncation; vLLM's
  # processed_logprobs), tempered (after temperature, of the whole vocabulary)
  # or raw (of the model itself; vLLM's default). Unset is an error but at
  # temperature 1 with top_p=1 and top_k=0, where all are the same.
  config.import_rollouts.logprobs = placeholder(str)
  # Take the log-probs of the configured model in the place of behaviour
  # log-probs: their ratio to it is 1, however stale the rollouts are. What the
  # rows have is not read.
  config.import_rollouts.recompute_logprobs = False
  # The configured model drew the rollouts: its log-probs are compared with the
  # recorded ones (refused beyond 0.1 nats on average), and training takes the
  # rollouts for fresh ones.
  config.import_rollouts.drawn_by_model = False
  # How a response ended whose last token is no stop id though the dump says
  # stop, or nothing: stop or length. Unset: it is refused.
  config.import_rollouts.missing_eos = placeholder(str)
  # Rewards come from the verifier of `reward` (math or last_number) and the
  # rows' reference answers; those of the rows are not read.
  config.import_rollouts.grade = False
  # Encode prompts that are texts as they stand although they hold no control
  # token and the tokenizer has a chat template.
  config.import_rollouts.plain_text = False

  config.export_rollouts = ml_collections.ConfigDict()
  # Of the file: jsonl or parquet.
  config.export_rollouts.format = "jsonl"
  # File to write; empty is exported/rollouts.FORMAT under --workdir.
  config.export_rollouts.file = ""
  return config
