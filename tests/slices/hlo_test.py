"""hlo.py: a module written by hand, and its exchanges counted by hand."""

import pytest

from jaxrl_llm.slices import hlo

MODULE = """HloModule jit_step, entry_computation_layout={(f32[8]{0})->f32[8]{0}}

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

%cond (state: (s32[], f32[8])) -> pred[] {
  %state = (s32[]{:T(128)}, f32[8]{0}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%state), index=0
  %bound = s32[]{:T(128)} constant(36)
  ROOT %less = pred[] compare(%i, %bound), direction=LT
}

%inner_cond (state: (s32[], s32[])) -> pred[] {
  %state = (s32[], s32[]) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %bound = s32[] get-tuple-element(%state), index=1
  ROOT %less = pred[] compare(%i, %bound), direction=LT
}

%inner (state: (s32[], s32[])) -> (s32[], s32[]) {
  %state = (s32[], s32[]) parameter(0)
  %n = bf16[4] fusion(%p), kind=kOutput, calls=%next_step
  %h = bf16[64,1024]{1,0:T(8,128)(2,1)S(1)} all-gather(%p), channel_id=3, replica_groups=[2,8]<=[16], dimensions={0}
  ROOT %out = (s32[], s32[]) tuple(%i, %j)
}

%first_step (p: bf16[4]) -> bf16[4] {
  %g = bf16[1,256]{1,0} all-gather(%p), channel_id=7, replica_groups=mesh['axis_0'=2,'axis_1'=4] {'axis_1'}, dimensions={1}, frontend_attributes={chain_id="0"}
  ROOT %s = bf16[4] custom-call(%g), custom_call_target="AsyncCollectiveStart"
}

%next_step (p: bf16[4]) -> bf16[4] {
  ROOT %g = bf16[1,256]{1,0} all-gather(%p), channel_id=7, replica_groups=mesh['axis_0'=2,'axis_1'=4] {'axis_1'}, dimensions={1}, frontend_attributes={chain_id="0"}
}

%all-reduce-scatter.5 (input: f32[1024]) -> f32[256] {
  %r = f32[1024]{0:T(1024)} all-reduce(%input), channel_id=9, replica_groups={{0,1,2,3}}, to_apply=%add
  ROOT %s = f32[256] dynamic-slice(%r, %place)
}

%body (state: (s32[], f32[8])) -> (s32[], f32[8]) {
  %state = (s32[], f32[8]) parameter(0)
  %a = bf16[4] fusion(%p), kind=kOutput, calls=%first_step
  %b = bf16[4] fusion(%a), kind=kOutput, calls=%next_step
  %c = f32[256] fusion(%q), kind=kCustom, calls=%all-reduce-scatter.5
  %w = (s32[], s32[]) while(%t), condition=%inner_cond, body=%inner
  ROOT %out = (s32[], f32[8]) tuple(%i, %x)
}

ENTRY %main (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %w = (s32[], f32[8]) while(%t), condition=%cond, body=%body
  %r = (f32[100]{0}, f32[]{:T(128)}) all-reduce(%x, %y), channel_id=1, replica_groups=[1,16]<=[16], to_apply=%add, metadata={op_name="jit(step)/norm"}
  %s = (f32[48]{0}, f32[48]{0}, u32[], u32[]) collective-permute-start(%x), channel_id=2, source_target_pairs={{0,1},{1,0}}
  %d = f32[48]{0} collective-permute-done(%s)
  %t2 = (f32[2,3]{1,0}, f32[8,3]{1,0}) all-gather-start(%x), channel_id=4, replica_groups={{0,1,2,3}}, dimensions={0}
  %alone = f32[500]{0} all-reduce(%x), channel_id=5, replica_groups={{0},{1}}, to_apply=%add
  ROOT %out = f32[8]{0} get-tuple-element(%w), index=1
}
"""


def by_kind(found):
  grouped = {}
  for item in found:
    grouped.setdefault(item.kind, []).append(item)
  return grouped


def test_each_exchange_counts_as_often_as_its_loop_turns():
  found = by_kind(hlo.collectives(MODULE, turns=5))
  # In the loop of 36 turns: one gather, whose steps run in a fusion after the
  # first and in an inner loop of unknown end; one in that loop, 36 × 5; and one
  # outside.
  assert [(g.shapes, g.devices, g.times) for g in found["all-gather"]] == [
      ((("bf16", (64, 1024)),), 8, 180),
      ((("bf16", (1, 256)),), 4, 36),
      ((("f32", (8, 3)),), 4, 1),
  ]
  # The compiler for TPUs writes a reduce-scatter as a fusion of this name.
  scatter, = found["reduce-scatter"]
  assert (scatter.times, scatter.bytes) == (36, 4096)
  reduce, = found["all-reduce"]  # That of one device alone sends nothing.
  assert (reduce.bytes, reduce.devices) == (404, 16)
  assert reduce.source == "jit(step)/norm"


def test_bytes_sent_are_those_of_a_ring():
  sent = hlo.sent_by_kind(hlo.collectives(MODULE, turns=5))
  # 64 · 1024 · 2 · 7/8 · 180 + 256 · 2 · 3/4 · 36 + 24 · 4 · 3/4
  gathered = 20_643_840 + 13_824 + 72
  assert sent == pytest.approx({
      "all-gather": gathered,
      "reduce-scatter": 1024 * 4 * 0.75 * 36,
      "all-reduce": 404 * 2 * 15 / 16,
      "collective-permute": 192,
  })


@pytest.mark.parametrize(
    "groups, devices",
    [
        ("{{0,1,2}}", 3),
        ("{{0,4},{1,5},{2,6},{3,7}}", 2),
        ("[4,2]<=[8]", 2),
        ("[2,32]<=[32,2]T(1,0)", 32),
        ("mesh['axis_0'=4,'axis_1'=1] {'axis_0','axis_1'}", 4),
        (
            "mesh['axis_0'=1,'axis_1'=8,'axis_2'=2], device_ids=([2,8]T(1,0))"
            " {'axis_1'}",
            8,
        ),
    ],
)
def test_groups_are_read_in_each_of_their_forms(groups, devices):
  text = MODULE.replace("[1,16]<=[16]", groups)
  reduce, = by_kind(hlo.collectives(text, turns=5))["all-reduce"]
  assert reduce.devices == devices


def test_groups_of_an_unknown_form_are_no_silence():
  with pytest.raises(ValueError, match="replica groups.*all-reduce"):
    hlo.collectives(MODULE.replace("[1,16]<=[16]", "all"), turns=5)


def test_a_turn_count_that_the_compiler_knows_is_taken():
  text = MODULE.replace(
      "condition=%inner_cond, body=%inner",
      "condition=%inner_cond, body=%inner,"
      ' backend_config={"known_trip_count":{"n":"2"}}',
  )
  gather = hlo.collectives(text, turns=5)[0]
  assert gather.times == 72


def test_instructions_run_as_often_as_the_loops_around_them_turn():
  found = hlo.runs(MODULE, turns=5)
  # Once; in the loop of 36 turns; in a loop within it; in what that one calls.
  times = {name: found[name][0] for name in ("alone", "b", "h", "n")}
  assert times == {"alone": 1, "b": 36, "h": 36 * 5, "n": 36 * 5}
  assert found["alone"][1].startswith("f32[500]{0} all-reduce(%x)")
