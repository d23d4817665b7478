"""The scheduler: whose turn it is, what has the GPU for itself, what a failure costs, and what is measured again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from math import inf
from typing import Any

import pytest

from tflabench.bench import scheduler as scheduling
from tflabench.bench.comparison_run import ComparisonRun, PointRun
from tflabench.bench.events import Activity, Task
from tflabench.bench.machine import Machine, node_name
from tflabench.bench.protocol import PAPER, STANDARD, Protocol, Rules
from tflabench.bench.rows_of_run import Occasion
from tflabench.bench.scheduler import Scheduler, asks_no_less
from tflabench.bench.tuning import TuningStore
from tflabench.bench.warm import Warmed
from tflabench.bench.workers import SHARED
from tflabench.implementations import registry
from tflabench.implementations.adapter import Implementation
from tflabench.problem import Problem
from tflabench.rows.schema import Row
from tflabench.selection.points import Comparison, Point
from tflabench.theory.hardware import Ceilings

MACHINE = Machine("cuda", "some GPU", 2**36, uuid="GPU-1")
CEILINGS = {"float32": Ceilings(1e14, 1e12, "measured", "test")}
DIGEST = {"forward": [0.5] * 4}


def implementation(name: str, **changes: Any) -> Implementation:
    return Implementation(
        name, "mlstm", name, lambda *_: pytest.fail("built"), lambda *_: None, gate="sig", chunked=True, **changes
    )


@pytest.fixture(autouse=True)
def known(monkeypatch) -> dict[str, Implementation]:
    """Three implementations: two share a process, and one tunes in a process of its own."""
    three = [implementation("a", compiles=True), implementation("b"), implementation("c", own_process=True, tunes=True)]
    monkeypatch.setattr(registry, "_plugged", three)
    return {impl.name: impl for impl in three}


def point(name: str = "a", **changes: Any) -> Point:
    sizes = {"batch": 4, "heads": 2, "seq_len": 512, "d_qk": 16, "d_hv": 16, "dtype": "float32", **changes}
    return Point(registry.get(name), Problem(**sizes))


def comparison(*names: str, **changes: Any) -> Comparison:
    return Comparison(tuple(point(name, **changes) for name in names))


class Workers:
    """Processes that answer at once, one job a call of `wait`, in the order in which they were sent.

    Attributes:
        said: (implementation, kind) of every job, in order, brief turns as "look"; processes that are started as
            ("process", "start").
        times: implementation -> milliseconds of its turns, the last one for good.
        answers: (implementation, kind) -> what is answered instead.
        slow: implementation -> how often `wait` is called before it has compiled and prepared.
        throttled: the implementation during which the GPU holds its clock back.
    """

    def __init__(self, times: dict[str, list[float]] | None = None, answers: Any = None, slow: Any = None,
                 throttled: str = "") -> None:  # fmt: skip
        self.times = times or {}
        self.throttled = throttled
        self.slow: dict[str, int] = slow or {}
        self.paused: set[str] = set()
        self.answers = answers or {}
        self.said: list[tuple[str, str]] = []
        self.alive: set[str] = {SHARED}
        self.ended: list[str] = []
        self.most_at_once = 0
        self._due: list[tuple[str, dict[str, Any] | None]] = []
        self._turns: dict[str, int] = {}

    def busy(self, slot: str) -> bool:
        return any(slot == working for working, _ in self._due)

    def has(self, slot: str) -> bool:
        return slot in self.alive

    def send(self, slot: str, job: dict[str, Any] | None, timeout_s: float) -> None:
        assert not self.busy(slot)
        kinds = [sent["kind"] for _, sent in self._due if sent]
        assert "turn" not in kinds, "a job was given while a turn was timed"
        others = {of for of, _ in self._due} - self.paused
        assert not (job and job["kind"] == "turn" and others), "a turn began while something else was at work"
        self.alive.add(slot)
        self._due.append((slot, job))
        self.most_at_once = max(self.most_at_once, len(self._due))
        self.said.append((job["implementation"], _kind(job)) if job else ("process", "start"))

    def wait(self, timeout_s: float) -> list[tuple[str, dict[str, Any]]]:
        if not self._due:
            return []
        place = next((n for n, (slot, _) in enumerate(self._due) if slot not in self.paused), 0)
        slot, job = self._due[place]
        if self.slow.get(self._name(slot), 0) > 0:
            self.slow[self._name(slot)] -= 1
            self._due.append(self._due.pop(place))
            return []
        del self._due[place]
        if job is None:
            return [(slot, {"status": "ok"})]
        name = job["implementation"]
        if (name, _kind(job)) in self.answers:
            return [(slot, dict(self.answers[name, _kind(job)]))]
        if job["kind"] == "prepare":
            return [
                (slot, {"status": "ok", "reason": None, "digest": DIGEST, "details": {"allowed": {"forward": 0.01}}})
            ]
        number = self._turns.get(name, -1) + (_kind(job) == "turn")
        self._turns[name] = number
        times = self.times.get(name, [1.0])
        turn = {"samples": [times[min(max(number, 0), len(times) - 1)]] * 10, "warmup": 5, "timer": "cuda_events"}
        clocks = {"sm_clock_mhz": 1500, "throttled": name == self.throttled, "throttle_reasons": []}
        return [(slot, {"status": "ok", "turn": turn, "digest": DIGEST, "seconds": 0.1, **clocks})]

    def pausable(self, slot: str) -> bool:
        return self.slow.get(self._name(slot), 0) > 0

    def pause(self, slots: Any) -> None:
        assert all(self.pausable(slot) for slot in slots)
        self.paused = set(slots)

    def resume(self) -> None:
        self.paused = set()

    def _name(self, slot: str) -> str:
        return next((job["implementation"] for of, job in self._due if of == slot and job), "")

    def end(self, slot: str) -> None:
        self.ended.append(slot)
        self.alive.discard(slot)

    def end_all(self, slots: Iterable[str]) -> None:
        for slot in slots:
            self.end(slot)


def _kind(job: dict[str, Any]) -> str:
    return "look" if job.get("protocol") in (asdict(STANDARD.brief), asdict(PAPER.brief)) else job["kind"]


class WarmUp:
    """A warm-up that ends for an implementation when it has been polled so often.

    Attributes:
        after: implementation -> number of polls; 1 where it is not named.
        results: implementation -> status and reason of its first call; "ok" where it is not named.
        paused: whether it leaves the GPU alone.
        pauses: how often that began.
        gave_way: how often it was asked to give its memory back, of which it has some.
        replays: what autotuners of the points chose before.
    """

    def __init__(self, after: dict[str, int], results: dict[str, tuple[str, str]] | None = None) -> None:
        self.after, self.results = after, results or {}
        self.paused, self.pauses, self.gave_way = False, 0, 0
        self.at_work: tuple[Point, ...] = ()
        self.replays: list[Any] = []
        self._submitted = 0
        self._polls = 0
        self._waiting: dict[int, Point] = {}

    def submit(self, point: Point, replay: Any = None) -> int:
        self._submitted += 1
        self.replays.append(replay)
        self._waiting[self._submitted] = point
        self.at_work = tuple(self._waiting.values())
        return self._submitted

    def poll(self) -> list[Warmed]:
        self._polls += 1
        ended: list[Warmed] = []
        for ticket, point in list(self._waiting.items()):
            name = point.implementation.name
            if self.after.get(name, 1) <= self._polls:
                ended.append(Warmed(ticket, *self.results.get(name, ("ok", None)), 2.5))
                del self._waiting[ticket]
        self.at_work = tuple(self._waiting.values())
        return ended

    def pause(self) -> None:
        self.pauses += not self.paused
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def give_way(self) -> bool:
        self.gave_way += 1
        return True


def run(
    comparisons: list[Comparison],
    workers: Workers,
    tmp_path,
    warm_up: Any = None,
    *,
    protocol: Protocol = STANDARD,
    stop_at: float = inf,
    clock: Callable[[], float] = lambda: 0.0,
    memory_bytes: int = MACHINE.memory_bytes,
    watch: Callable[[Activity], None] = lambda activity: None,
) -> list[Row]:
    """Every row that is told, in order."""
    rows: list[Row] = []
    ended: list[Task] = []
    occasion = Occasion("run", MACHINE, protocol, CEILINGS)

    def on_point(begun: ComparisonRun, of: PointRun) -> None:
        rows.append(occasion.row(begun, of))

    tuning = TuningStore(tmp_path / "tuning", {"device": "some GPU"})
    rules = Rules(protocol, 60.0, 20.0, stop_at=stop_at)
    told = (tuning, on_point, ended.append, clock)
    scheduler = Scheduler("cuda", memory_bytes, rules, workers, warm_up, *told)  # type: ignore[arg-type]
    tasks = [Task(number, each) for number, each in enumerate(comparisons, 1)]
    for task in tasks:
        scheduler.admit(task)
    while len(ended) < len(tasks):
        scheduler.advance()
        watch(scheduler.activity)
        scheduler.receive(0.5)
    assert scheduler.activity == Activity()
    assert set(ended) == set(tasks)
    return rows


def turns(workers: Workers) -> str:
    return "".join(name for name, kind in workers.said if kind == "turn")


def test_implementations_take_turns_in_rounds(tmp_path):
    workers = Workers()
    rows = run([comparison("a", "b", "c")], workers, tmp_path)
    assert turns(workers) == "abc" * 3
    provisional, final = rows[:3], rows[3:]
    assert [(row.implementation, row.rounds, row.closed) for row in provisional] == [(n, 1, False) for n in "abc"]
    assert [(row.implementation, row.rounds, row.closed) for row in final] == [(n, 3, True) for n in "abc"]
    assert {row.comparison_id for row in rows} == {rows[0].comparison_id}
    assert final[0].samples == 30
    assert (final[0].warmup, final[0].details["ms_by_round"]) == (15, [1.0, 1.0, 1.0])
    assert (final[0].node, final[0].gpu_uuid, final[0].sm_clock_mhz) == (node_name(), MACHINE.uuid, 1500)
    assert final[0].throttled is False
    assert final[0].measure_s == pytest.approx(0.4)  # with the brief turn before the rounds
    assert final[0].source_hash == rows[0].source_hash != None  # noqa: E711


def test_the_first_row_does_not_wait_for_the_others(tmp_path):
    workers = Workers()
    run([comparison("a", "b", "c")], workers, tmp_path)
    assert workers.said[:2] == [("a", "prepare"), ("a", "look")]


def test_brief_turns_do_not_hold_up_what_can_be_prepared(tmp_path, monkeypatch):
    """They need the GPU for themselves, and preparations overlap."""
    monkeypatch.setattr(registry, "_plugged", [implementation(n, own_process=True) for n in "pqrst"])
    workers = Workers()
    run([comparison(*"pqrst")], workers, tmp_path)
    jobs = [said for said in workers.said if said[1] in ("prepare", "look")]
    assert jobs == [("p", "prepare"), ("p", "look"), *((name, "prepare") for name in "qrst")]


def test_rounds_go_on_until_the_medians_settle(tmp_path):
    workers = Workers({"a": [1.0, 1.1, 1.0], "b": [1.05]})
    rows = run([comparison("a", "b")], workers, tmp_path)
    assert turns(workers) == "ab" * STANDARD.max_rounds
    assert rows[-2].rounds == 6
    for times in ({"a": [1.0, 1.005, 1.0]}, {"a": [1.0, 1.1, 1.0], "b": [2.0]}):
        calm = Workers(times)
        run([comparison("a", "b")], calm, tmp_path)
        assert turns(calm) == "ab" * 3
    throttled = Workers({"a": [1.0, 1.1, 1.0], "b": [1.05]}, throttled="a")  # its times are in no ratio
    run([comparison("a", "b")], throttled, tmp_path)
    assert turns(throttled) == "ab" * 3


def test_a_brief_turn_is_no_round(tmp_path):
    """It is of another time than the rounds, so neither its time nor its clock counts once there are these."""
    workers = Workers({"a": [5.0]})
    rows = run([comparison("a", "b")], workers, tmp_path)
    assert [name for name, kind in workers.said if kind == "look"] == ["a"]  # all is prepared before the turn of `b`
    assert turns(workers) == "ab" * 3
    (first, *_), last = rows, rows[-2]
    assert (first.ms_median, first.rounds, first.closed, first.details["ms_by_round"]) == (5.0, 1, False, [5.0])
    assert (last.implementation, last.rounds, last.closed, last.samples) == ("a", 3, True, 30)
    waits = Workers(slow={"b": 5}, throttled="a")
    look = PointRun(point("a"), SHARED, alone=False)
    look.prepared({"status": "ok", "digest": DIGEST, "details": {"allowed": {"forward": 0.01}}})
    waits.send(SHARED, {"kind": "turn", "implementation": "a", "protocol": asdict(STANDARD.brief)}, 1.0)
    look.sampled(waits.wait(1.0)[0][1])
    assert (len(look.turns), look.throttled, look.clocks) == (1, True, [1500])
    look.begin_rounds()
    assert (look.turns, look.throttled, look.clocks) == ([], None, [])


class Short(Workers):
    """Workers on a GPU without room for `a`, of some length, beside a process that waits.

    Attributes:
        full: prepared, `a` is out of memory although nothing else has any.
        beside: how many processes waited, each time `a` was prepared.
    """

    full = False

    def __init__(self) -> None:
        super().__init__()
        self.beside: list[int] = []

    def wait(self, timeout_s: float) -> list[tuple[str, dict[str, Any]]]:
        results = super().wait(timeout_s)
        if results and self.said and results[0][0] == SHARED and "digest" in results[0][1]:
            name, kind = next(said for said in reversed(self.said) if said[0] in "abd")
            if (name, kind) == ("a", "prepare"):
                self.beside.append(len(self.alive - {SHARED}))
                if self.beside[-1] or self.full:
                    return [(SHARED, {"status": "oom", "reason": "out of memory"})]
        return results


@pytest.mark.parametrize("full", [False, True])
def test_out_of_memory_is_tried_again_without_the_processes_of_other_comparisons(tmp_path, full, known, monkeypatch):
    """`a` compiles long. Meanwhile `c` of the next comparison is prepared; its process waits for `d`, with memory."""
    monkeypatch.setattr(registry, "_plugged", [*known.values(), implementation("d", compiles=True)])
    workers = Short()
    workers.full = full
    warm_up = WarmUp({"a": 12, "d": 20})
    rows = run([comparison("b", "a"), comparison("c", "d", seq_len=1024)], workers, tmp_path, warm_up)
    assert workers.beside == [1, 0]
    last = {row.implementation: row for row in rows}
    assert (last["a"].status, last["a"].closed) == ("oom" if full else "ok", True)
    assert (last["c"].status, last["c"].rounds, last["c"].closed) == ("ok", 3, True)
    assert turns(workers) == ("b" if full else "ba") * 3 + "cdcdcd"  # its rounds are of its second process
    assert workers.said.count(("c", "prepare")) == 2


def test_out_of_memory_beside_a_paused_preparation_is_tried_again_without_it(tmp_path, known, monkeypatch):
    """`c` tunes, so `p` is paused in its first call, and keeps the memory that it has."""
    monkeypatch.setattr(registry, "_plugged", [known["b"], implementation("p", own_process=True), known["c"]])
    beside: list[int] = []

    class Full(Workers):
        def wait(self, timeout_s: float) -> list[tuple[str, dict[str, Any]]]:
            at_work = dict(self._due)
            results = super().wait(timeout_s)
            if results and (job := at_work[results[0][0]]) and (job["implementation"], job["kind"]) == ("c", "prepare"):
                beside.append(len(at_work) - 1)
                if beside[-1]:
                    return [(results[0][0], {"status": "oom", "reason": "out of memory"})]
            return results

    workers = Full(slow={"p": 6})
    rows = run([comparison("b"), comparison("p", "c", seq_len=1024)], workers, tmp_path)
    assert beside == [1, 0]
    starts = workers.said.count(("process", "start"))
    assert starts == 3, "p's, and two of c: in its first one autotuners keep what they chose, and do not say it again"
    assert {row.implementation: row.status for row in rows if row.closed} == {"b": "ok", "p": "ok", "c": "ok"}


def test_what_ends_together_with_one_that_is_out_of_memory_has_its_result(tmp_path, known, monkeypatch):
    monkeypatch.setattr(registry, "_plugged", [*known.values(), implementation("p", own_process=True)])

    class Together(Workers):
        """Preparations of `a` and `p` end at once, the first time."""

        ended_together = False

        def wait(self, timeout_s: float) -> list[tuple[str, dict[str, Any]]]:
            slots = {job["implementation"]: slot for slot, job in self._due if job and job["kind"] == "prepare"}
            if self.ended_together or not slots.keys() & {"a", "p"}:
                return super().wait(timeout_s)
            if not slots.keys() >= {"a", "p"}:
                return []
            self.ended_together = True
            self._due = [(slot, job) for slot, job in self._due if slot not in slots.values()]
            result = {"status": "ok", "reason": None, "digest": DIGEST, "details": {"allowed": {"forward": 0.01}}}
            return [(slots["a"], {"status": "oom", "reason": "out of memory"}), (slots["p"], result)]

    workers = Together()
    rows = run([comparison("b", "a"), comparison("p", seq_len=1024)], workers, tmp_path, WarmUp({"a": 12}))
    assert workers.ended_together
    assert {row.implementation: (row.status, row.rounds) for row in rows if row.closed} == dict.fromkeys(
        "abp", ("ok", 3)
    )


def test_a_process_that_does_not_start_says_nothing_of_larger_points(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_plugged", [implementation("p", own_process=True)])

    class SlowStart(Workers):
        tried = 0

        def wait(self, timeout_s: float) -> list[tuple[str, dict[str, Any]]]:
            starting = next((slot for slot, job in self._due if job is None), None)
            self.tried += starting is not None
            if starting is None or self.tried > 1:
                return super().wait(timeout_s)
            self._due = [(slot, job) for slot, job in self._due if slot != starting]
            return [(starting, {"status": "timeout", "reason": "no answer within 360 s, while starting"})]

    rows = run([comparison("p"), comparison("p", seq_len=1024)], SlowStart(), tmp_path)
    assert [row.status for row in rows if row.closed] == ["timeout", "ok"]


def test_the_papers_protocol_is_one_round(tmp_path):
    workers = Workers()
    rows = run([comparison("a", "b")], workers, tmp_path, protocol=PAPER)
    assert turns(workers) == "ab"
    assert [(row.rounds, row.closed) for row in rows[-2:]] == [(1, True)] * 2


def test_who_compiles_longer_joins_later_and_all_rounds_are_common(tmp_path):
    """`a` is still compiling when the others have had their first turn: the next comparison goes on meanwhile."""
    workers = Workers({"b": [5.0, 1.0]})
    warm_up = WarmUp({"a": 12})
    rows = run([comparison("a", "b"), comparison("b", seq_len=1024)], workers, tmp_path, warm_up)
    said = turns(workers)
    assert said.startswith("b")
    assert said.index("bbb") < said.index("a")  # the second comparison closed before the first could
    assert said.endswith("ab" * 3)
    by_name = {row.implementation: row for row in rows if row.closed and row.seq_len == 512}
    assert {row.rounds for row in by_name.values()} == {3}
    assert by_name["b"].ms_median == 1.0  # what it sampled before `a` came is of another time
    assert by_name["a"].compile_s == 2.5


def test_what_tunes_has_the_gpu_for_itself_and_a_process_of_its_own(tmp_path, known, monkeypatch):
    workers = Workers()
    run([comparison("a", "b", "c")], workers, tmp_path)
    assert ("process", "start") in workers.said
    assert len(workers.ended) == 1
    assert workers.alive == {SHARED}
    tuned = {"choices": {"kernel": {"num_warps": 4}}, "tried": 3, "configurations": 3}
    ready = {
        "status": "ok",
        "reason": None,
        "digest": DIGEST,
        "details": {"allowed": {}},
        "tuned": tuned,
        "tune_s": 1.0,
    }
    rows = run([comparison("c")], Workers(answers={("c", "prepare"): ready}), tmp_path)
    assert rows[-1].tuned == tuned
    replayed = Workers()
    sent: list[Any] = []
    monkey = replayed.send
    replayed.send = lambda slot, job, timeout_s: (sent.append(job), monkey(slot, job, timeout_s))[1]  # type: ignore[method-assign]
    run([comparison("c")], replayed, tmp_path)
    assert [job["replay"] for job in sent if job and job["kind"] == "prepare"] == [tuned["choices"]]
    monkeypatch.setattr(registry, "_plugged", [replace(known["c"], compiles=True)])
    warm_up = WarmUp({})
    run([comparison("c")], Workers(), tmp_path, warm_up)
    assert warm_up.replays == [tuned["choices"]]


def test_who_compiles_in_its_own_process_is_paused_while_others_are_timed(tmp_path, monkeypatch):
    """Inductor compiles in the process that measures, for seconds: turns do not wait for that."""
    own = [implementation(name, own_process=True) for name in ("q0", "p", "q1", "q2")]
    monkeypatch.setattr(registry, "_plugged", own)
    workers = Workers(slow={"p": 30})
    rows = run([comparison("q0", "p", "q1", "q2")], workers, tmp_path)
    assert [name for name, kind in workers.said if kind == "look"] == ["q0", "q1", "q2"]
    assert {row.rounds for row in rows if row.closed} == {3}


def test_a_failure_costs_its_point(tmp_path):
    crashed = {"status": "crashed", "reason": "SIGABRT"}
    workers = Workers(answers={("b", "prepare"): crashed})
    rows = run([comparison("a", "b")], workers, tmp_path)
    assert [(row.implementation, row.status, row.closed) for row in rows[-2:]] == [
        ("a", "ok", True),
        ("b", "crashed", True),
    ]
    assert rows[-1].ms_median is None
    workers = Workers(answers={("b", "turn"): crashed})
    rows = run([comparison("a", "b")], workers, tmp_path)
    assert [row.status for row in rows[-2:]] == ["ok", "crashed"]
    assert rows[-2].rounds == 3
    for kind in ("look", "turn"):  # also of who has a provisional time
        rows = run([comparison("a", "b")], Workers(answers={("a", kind): crashed}), tmp_path)
        assert [(row.status, row.ms_median is None, row.rounds) for row in rows[-2:]] == [
            ("crashed", True, 0),
            ("ok", False, 3),
        ]


def test_what_cannot_run_is_a_row_of_its_comparison(tmp_path, known, monkeypatch):
    refusing = replace(known["b"], refuses=lambda problem, device: "needs the moon")
    monkeypatch.setattr(registry, "_plugged", [known["a"], refusing])
    rows = run([comparison("a", "b")], Workers(), tmp_path)
    (refused,) = {row.comparison_id for row in rows if row.status == "unsupported"}
    assert refused == rows[-1].comparison_id
    assert rows[0].reason == "needs the moon"


def test_answers_that_change_are_wrong_and_have_a_time(tmp_path):
    other = {"forward": [0.5, 0.5, 0.9, 0.5]}
    turn = {"samples": [1.0] * 10, "warmup": 5, "timer": "cuda_events"}
    said = {"status": "ok", "turn": turn, "digest": other, "seconds": 0.1}
    said |= {"sm_clock_mhz": None, "throttled": None, "throttle_reasons": []}
    rows = run([comparison("a", "b")], Workers(answers={("b", "turn"): said}), tmp_path)
    assert (rows[-1].status, rows[-1].ms_median) == ("wrong", 1.0)
    assert rows[-1].reason == "not repeatable: forward changes from one call to the next"


def test_who_is_wrong_is_timed_all_the_same(tmp_path):
    wrong = {"status": "wrong", "reason": "dv is off", "digest": DIGEST, "details": {"allowed": {}}}
    rows = run([comparison("a")], Workers(answers={("a", "prepare"): wrong}), tmp_path)
    assert (rows[-1].status, rows[-1].reason, rows[-1].ms_median, rows[-1].rounds) == ("wrong", "dv is off", 1.0, 3)


@pytest.mark.parametrize(
    ("changes", "tried"),
    [
        ({"batch": 2, "seq_len": 1024}, False),  # as many tokens
        ({"batch": 8}, False),
        ({"heads": 4}, False),
        ({"heads": 32, "heads_qk": 16}, False),
        ({"seq_len": 256, "batch": 8}, True),
        ({"batch": 2}, True),
        ({"batch": 1, "seq_len": 1024}, True),
        ({"seq_len": 1024, "d_hv": 32}, True),
        ({"seq_len": 1024, "pass_": "fwbw"}, True),
        ({"seq_len": 1024, "chunk_size": 64}, True),
    ],
)
def test_after_a_timeout_what_asks_no_less_is_not_tried(tmp_path, changes, tried):
    late = {"status": "timeout", "reason": "no answer"}
    workers = Workers(answers={("a", "prepare"): late})
    rows = run([comparison("a"), comparison("a", **changes)], workers, tmp_path)
    assert asks_no_less(point("a", **changes), point("a")) is not tried
    assert len(workers.said) == 1 + tried
    if not tried:
        assert rows[-1].reason == "not tried: it took over 60 s at T = 512"


def test_no_point_is_begun_once_the_time_is_up(tmp_path):
    workers = Workers()
    assert run([comparison("a"), comparison("b")], workers, tmp_path, stop_at=0.0) == []
    assert workers.said == []


def test_rounds_under_way_are_finished_when_the_time_is_up(tmp_path):
    workers = Workers()
    late = lambda: float(("b", "prepare") in workers.said)  # noqa: E731
    rows = run([comparison("a", "b"), comparison("a", seq_len=1024)], workers, tmp_path, stop_at=1.0, clock=late)
    assert turns(workers) == "ab" * 3
    assert {(row.implementation, row.seq_len) for row in rows if row.closed} == {("a", 512), ("b", 512)}


def test_when_the_time_is_up_one_comparison_more_has_its_rounds(tmp_path, monkeypatch):
    """All of both are prepared by then."""
    monkeypatch.setattr(registry, "_plugged", [implementation(n, own_process=True) for n in "pqrs"])
    workers = Workers(slow={"q": 12, "s": 12})
    late = lambda: float(("s", "prepare") in workers.said)  # noqa: E731
    both = [comparison("p", "q"), comparison("r", "s", seq_len=1024)]
    rows = run(both, workers, tmp_path, stop_at=1.0, clock=late)
    assert turns(workers) == "pq" * 3
    assert {(row.implementation, row.seq_len) for row in rows if row.closed} == {("p", 512), ("q", 512)}


def test_preparations_overlap_and_no_more_than_they_may(tmp_path, monkeypatch):
    own = [implementation(f"p{n}", own_process=True) for n in range(scheduling.AT_ONCE + 2)]
    monkeypatch.setattr(registry, "_plugged", own)
    workers = Workers()
    run([comparison(*(impl.name for impl in own))], workers, tmp_path)
    assert workers.most_at_once == scheduling.AT_ONCE


def test_preparations_overlap_within_half_of_the_memory(tmp_path, monkeypatch):
    """The comparison whose turn it is goes on in any case."""
    own = [implementation(f"p{n}", own_process=True) for n in range(4)]
    monkeypatch.setattr(registry, "_plugged", own)
    both = [comparison("p0", "p1"), comparison("p2", "p3", seq_len=1024)]
    most: dict[int, int] = {}
    for gigabytes in (0, 4, 64):
        workers = Workers()
        rows = run(both, workers, tmp_path, memory_bytes=gigabytes << 30)
        assert {(row.implementation, row.status) for row in rows if row.closed} == {(p.name, "ok") for p in own}
        most[gigabytes] = workers.most_at_once
    assert most == {0: 1, 4: 2, 64: 3}  # the very first point is prepared alone


def test_so_many_processes_wait_at_most(tmp_path, monkeypatch):
    """`q` compiles long; behind it points of two comparisons would wait for their turns."""
    monkeypatch.setattr(registry, "_plugged", [implementation(n, own_process=True) for n in "pqrstu"])
    monkeypatch.setattr(scheduling, "PROCESSES", 4)
    workers = Workers(slow={"q": 40})
    alive: list[int] = []
    three = [comparison("p", "q"), comparison("r", "s", seq_len=1024), comparison("t", "u", seq_len=2048)]
    rows = run(three, workers, tmp_path, watch=lambda activity: alive.append(len(workers.alive - {SHARED})))
    assert max(alive) == 4
    assert sum(row.closed for row in rows) == 6


def test_without_memory_for_the_next_comparison_provisional_rows_come_all_the_same(tmp_path, known, monkeypatch):
    """`a` compiles long. `b` and `d` are prepared; there is no room for `c`."""
    monkeypatch.setattr(registry, "_plugged", [*known.values(), implementation("d")])
    workers = Workers()
    both = [comparison("b", "d", "a"), comparison("c", seq_len=1024)]
    run(both, workers, tmp_path, WarmUp({"a": 12}), memory_bytes=0)
    said = workers.said
    assert said.index(("d", "look")) < said.index(("a", "prepare")) < said.index(("c", "prepare"))


def test_the_next_comparison_is_prepared_beside_the_first(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_plugged", [implementation(n, own_process=True) for n in "pqrs"])
    workers = Workers(slow={"q": 20})
    run([comparison("p", "q"), comparison("r", "s", seq_len=1024)], workers, tmp_path)
    jobs = [(name, kind) for name, kind in workers.said if kind in ("prepare", "turn")]
    assert jobs[:4] == [(name, "prepare") for name in "pqrs"]
    assert turns(workers) == "rs" * 3 + "pq" * 3  # q is not done before


@pytest.mark.parametrize("waits", [12, 13])
def test_a_turn_that_has_to_wait_is_not_lost(tmp_path, monkeypatch, waits):
    """`a` and `b` are prepared, while `q` of the next comparison has work on the GPU that cannot be paused."""

    class Busy(Workers):
        def pausable(self, slot: str) -> bool:
            return False

    q = implementation("q", own_process=True)
    monkeypatch.setattr(registry, "_plugged", [implementation("a"), implementation("b"), q])
    workers = Busy(slow={"b": 4, "q": waits})
    run([comparison("a", "b"), comparison("q", seq_len=1024)], workers, tmp_path)
    assert workers.said.index(("q", "prepare")) < workers.said.index(("b", "turn"))
    assert turns(workers) == "ab" * 3 + "qqq"


def test_its_activity_is_what_is_worked_on_and_what_is_compiled(tmp_path):
    seen: list[Activity] = []
    both = [comparison("a", "b", "c"), comparison("a", seq_len=1024)]
    run(both, Workers(), tmp_path, WarmUp({"a": 12}), watch=seen.append)
    assert seen[1].compiling == (both[0].points[0], both[1].points[0])
    works = {(w.point.implementation.name, w.doing, w.comparison, w.turn) for each in seen for w in each.working}
    assert works >= {("c", "tuning", 1, 1), ("a", "timing", 1, 1), ("a", "timing", 1, 3), ("a", "timing", 2, 3)}


def test_what_is_warmed_up_leaves_the_gpu_to_what_is_timed_and_only_to_that(tmp_path):
    """A tuner is timed in its first call, and not while its results are checked."""
    warm_up = WarmUp({"a": 12})
    workers = Workers(slow={"c": 3})
    gpu: list[tuple[str, bool, bool]] = []

    def watch(activity: Activity) -> None:
        (doing,) = {work.doing for work in activity.working} & {"timing", "tuning"} or {""}
        timed = doing == "timing" or (doing == "tuning" and workers.slow["c"] > 0)
        gpu.append((doing, timed, warm_up.paused))

    run([comparison("a", "b", "c"), comparison("b", seq_len=1024)], workers, tmp_path, warm_up, watch=watch)
    assert {(doing, timed) for doing, timed, _ in gpu} == {
        ("timing", True), ("tuning", True), ("tuning", False), ("", False)
    }  # fmt: skip
    assert all(timed == paused for _, timed, paused in gpu)
    assert warm_up.gave_way == 0


@pytest.mark.parametrize("status", ["crashed", "timeout", "compile_error"])
def test_a_first_call_that_fails_is_not_tried_again_unless_a_tuner_has_others(tmp_path, status, known, monkeypatch):
    tunes = implementation("c", own_process=True, tunes=True, compiles=True)
    monkeypatch.setattr(registry, "_plugged", [known["a"], known["b"], tunes])
    workers = Workers()
    warm_up = WarmUp({"a": 3}, {"a": (status, "LLVM gives up"), "c": (status, "LLVM gives up")})
    rows = {row.implementation: row for row in run([comparison("a", "b", "c")], workers, tmp_path, warm_up)}
    assert (rows["a"].status, rows["a"].reason) == (status, "LLVM gives up")
    assert (rows["b"].status, rows["c"].status) == ("ok", "ok")
    assert ("a", "prepare") not in workers.said


@pytest.mark.parametrize("full", [False, True])
def test_out_of_memory_beside_the_warm_up_is_tried_once_more_without_it(tmp_path, full):
    warm_up = WarmUp({})

    class Beside(Workers):
        """`a` is out of memory until the warm-up has given its own back."""

        def wait(self, timeout_s: float) -> list[tuple[str, dict[str, Any]]]:
            results = super().wait(timeout_s)
            if results and self.said[-1] == ("a", "prepare") and (full or warm_up.gave_way < 2):
                return [(SHARED, {"status": "oom", "reason": "out of memory"})]
            return results

    workers = Beside()
    rows = run([comparison("a")], workers, tmp_path, warm_up)
    assert rows[-1].status == ("oom" if full else "ok")
    assert workers.said.count(("a", "prepare")) == 2
