# SPDX-License-Identifier: Apache-2.0
"""The plan alone, on plain values: each test is a way in which a connector could give silent wrong output."""

from __future__ import annotations

import random

import pytest

from cistern.engine.orders import LoadReport, SaveOrder, SaveReport
from cistern.engine.plan import Effects, Limits, Plan, PlannedRequest

SIZE = 4


def key(number: int) -> bytes:
    return number.to_bytes(32, "big")


def make(ranks: int = 1, per: tuple[int, ...] = (1,), max_pages: int = 1000, **more: object) -> Plan:
    return Plan(Limits(ranks=ranks, block_tokens=SIZE, pages_per_block=per, max_pages=max_pages, **more))  # type: ignore[arg-type]


def begin(plan: Plan, name: str = "r", blocks: int = 8, first: int = 0, **more: object) -> PlannedRequest:
    request = PlannedRequest(id=name, namespace=0, **more)  # type: ignore[arg-type]
    request.keys += [key(first + i) for i in range(blocks)]
    plan.begin(request)
    return request


def all_ranks(plan: Plan, order: SaveOrder, blocks: int | None = None) -> list[SaveReport]:
    good = len(order.keys) if blocks is None else blocks
    return [SaveReport(rank, order.id, good) for rank in range(plan.limits.ranks)]


# ---------------------------------------------------------------------------- what may be saved


@pytest.mark.parametrize(
    ("computed", "scheduled", "placeholders", "prompt", "tokens", "frontier"),
    [
        (0, 8, 0, 16, 16, 8),  # a prompt's first chunk
        (8, 8, 0, 16, 16, 16),  # its last: prompt tokens are known
        (16, 1, 0, 16, 17, 16),  # the sampled token's KV comes with this step, and is kept with the next
        (17, 1, 0, 16, 18, 17),
        (18, 1, 1, 16, 18, 17),  # async: one token is computed that nobody has seen yet
        (20, 3, 2, 16, 18, 17),  # drafts scheduled behind it, some of which will be rejected
        (0, 0, 0, 16, 20, 0),  # preempted: nothing is computed any more
    ],
)
def test_frontier_of_confirmed_and_computed_tokens(
    computed: int, scheduled: int, placeholders: int, prompt: int, tokens: int, frontier: int
) -> None:
    assert frontier == make().frontier(
        computed=computed, scheduled=scheduled, placeholders=placeholders, prompt_tokens=prompt, tokens=tokens
    )


def test_block_ordered_once_and_whole() -> None:
    plan = make()
    begin(plan)
    (order,) = plan.save(1, [("r", 11, ([5, 6, 7, 8],))])
    assert (order.keys, order.pages, order.parent, order.first_block) == ([key(0), key(1)], [[5, 6]], None, 0)
    assert not plan.wants("r", 11)
    (order,) = plan.save(2, [("r", 12, ([5, 6, 7, 8],))])
    assert (order.keys, order.pages, order.parent) == ([key(2)], [[7]], key(1))


def test_step_of_more_blocks_than_an_order_has_saved_with_that_step() -> None:
    """The next step of a long prompt has as many again: they would wait for its end, and keep its pages."""
    plan = make(max_pages=18, max_order_blocks=4)
    begin(plan, blocks=20)
    orders = plan.save(1, [("r", 11 * SIZE, ([*range(1, 21)],))])
    assert [(one.first_block, len(one.keys), one.parent) for one in orders] == [
        (0, 4, None), (4, 4, key(3)), (8, 3, key(7))
    ]
    orders = plan.save(2, [("r", 20 * SIZE, ([*range(1, 21)],))])
    assert [(one.first_block, len(one.keys)) for one in orders] == [(11, 4), (15, 3)]  # the bound of pages
    assert plan.blocks_left_out == 1


def test_speculation_leaves_the_last_block_out() -> None:
    plan = make(drop_last=True)
    begin(plan)
    (order,) = plan.save(1, [("r", 12, ([5, 6, 7],))])
    assert order.keys == [key(0), key(1)]
    assert plan.external_tokens("r", found=4, computed_tokens=0, total_tokens=100) == 3 * SIZE


def test_save_limit_orders_the_prompt_only() -> None:
    plan = make()
    begin(plan, save_limit_tokens=9)
    (order,) = plan.save(1, [("r", 32, ([*range(1, 9)],))])
    assert len(order.keys) == 2


def test_block_with_null_page_not_read() -> None:
    plan = make(per=(1, 2))
    begin(plan)
    (order,) = plan.save(1, [("r", 12, ([1, 2, 3], [0, 0, 0, 14, 15, 16]))])
    assert order.pages == [[1, 2, 3], [0, 0, 0, 0, 15, 16]]
    assert [put is None for put in order.put_ids[1]] == [True, True, False]
    assert sorted(plan.referenced(order.id)) == [1, 2, 3, 15, 16]


def test_block_on_its_way_not_saved_by_another_request() -> None:
    plan = make()
    begin(plan, "a")
    begin(plan, "b")
    plan.save(1, [("a", 8, ([1, 2],))])
    (order,) = plan.save(1, [("b", 12, ([11, 12, 13],))])
    assert order.keys == [key(2)] and order.parent == key(1)


def test_page_bound_leaves_out_the_leaf_most() -> None:
    plan = make(max_pages=5)
    begin(plan, "a", first=0)
    begin(plan, "b", first=100)
    plan.found("a", 3)
    orders = plan.save(1, [("a", 32, ([*range(1, 9)],)), ("b", 32, ([*range(11, 19)],))])
    assert [(o.keys[0], len(o.keys)) for o in orders] == [(key(100), 5)]
    assert plan.blocks_left_out == 2
    effects = plan.report([1], all_ranks(plan, orders[0]), [])
    assert len(effects.release) == 5
    assert plan.save(2, [("a", 32, ([*range(1, 9)],))])[0].first_block == 3


def test_page_bound_takes_higher_priority_first() -> None:
    plan = make(max_pages=5)
    begin(plan, "low", first=0, priority=-1)
    begin(plan, "usual", first=100)
    begin(plan, "high", first=200, priority=7)
    plan.found("high", 4)
    pages = ([*range(1, 9)],)
    orders = plan.save(1, [("low", 32, pages), ("usual", 32, pages), ("high", 32, pages)])
    assert [(order.keys[0], len(order.keys)) for order in orders] == [(key(204), 4), (key(100), 1)]


def test_conversation_saving_until_its_last_save_ends() -> None:
    plan = make()
    begin(plan, conversation="talk")
    (order,) = plan.save(1, [("r", 8, ([5, 6],))])
    assert order.conversation == "talk" and plan.saving(0, "talk") and not plan.saving(0, "other")
    plan.end("r")
    assert plan.saving(0, "talk")
    plan.report([1], all_ranks(plan, order), [])
    assert not plan.saving(0, "talk")


# ---------------------------------------------------------------------------- when it may be seen


def test_published_after_the_step_and_every_rank() -> None:
    plan = make(ranks=2)
    begin(plan)
    (order,) = plan.save(1, [("r", 8, ([1, 2],))])
    first, second = all_ranks(plan, order)
    assert plan.report([], [first], []) == Effects()
    assert plan.report([], [first], []) == Effects()  # the same rank again counts once
    assert plan.report([1], [], []) == Effects()
    effects = plan.report([2], [second], [])
    assert [(job.order.id, count) for job, count in effects.publish] == [(order.id, 2)]
    assert sorted(effects.release) == [1, 2] and not effects.abandon
    assert plan.referenced_pages == 0


def test_block_one_rank_could_not_write_abandoned_by_all() -> None:
    plan = make(ranks=2)
    request = begin(plan)
    (order,) = plan.save(1, [("r", 16, ([1, 2, 3, 4],))])
    effects = plan.report([1], [SaveReport(0, order.id, 4), SaveReport(1, order.id, 1)], [])
    assert [count for _, count in effects.publish] == [1]
    assert effects.abandon == [(order.id, order.put_ids[0][1:])]
    assert request.stopped and not plan.wants("r", 32)  # its descendants would wait for a parent in vain
    plan.resume("r")
    plan.found("r", 1)
    (again,) = plan.save(2, [("r", 16, ([1, 2, 3, 4],))])
    assert again.first_block == 1 and again.keys == order.keys[1:]


def test_save_computed_on_failed_load_abandoned() -> None:
    plan = make()
    request = begin(plan)
    (one,) = plan.save(1, [("r", 8, ([1, 2],))])
    (two,) = plan.save(2, [("r", 16, ([1, 2, 3, 4],))])  # scheduled before step 1's output was seen
    effects = plan.report([1], all_ranks(plan, one), [], foreign_failure=True)
    assert not effects.publish and effects.abandon == [(one.id, one.put_ids[0])]
    effects = plan.report([2], all_ranks(plan, two), [])
    assert not effects.publish and effects.abandon == [(two.id, two.put_ids[0])]
    assert request.saved == 0
    (again,) = plan.save(3, [("r", 8, ([1, 2],))])  # computed again: may be saved
    assert [count for _, count in plan.report([3], all_ranks(plan, again), []).publish] == [2]


def test_failed_load_elsewhere_keeps_confirmed_saves() -> None:
    plan = make()
    begin(plan)
    (one,) = plan.save(1, [("r", 8, ([1, 2],))])
    plan.report([1], [], [])
    effects = plan.report([2], all_ranks(plan, one), [], foreign_failure=True)
    assert [count for _, count in effects.publish] == [2]


def test_pages_of_ended_request_stay_referenced() -> None:
    plan = make()
    begin(plan)
    (order,) = plan.save(1, [("r", 8, ([1, 2],))])
    plan.end("r")
    assert plan.referenced_pages == 2
    assert sorted(plan.report([1], all_ranks(plan, order), []).release) == [1, 2]


def test_reset_publishes_nothing_and_keeps_references() -> None:
    plan = make()
    begin(plan)
    (order,) = plan.save(1, [("r", 8, ([1, 2],))])
    plan.report([1], [], [])
    assert plan.reset() == Effects()
    assert not plan.wants("r", 32)
    effects = plan.report([], all_ranks(plan, order), [])
    assert not effects.publish and effects.abandon and sorted(effects.release) == [1, 2]


def test_finish_publishes_confirmed_saves_only() -> None:
    plan = make()
    begin(plan, "a")
    begin(plan, "b", first=50)
    plan.save(1, [("a", 4, ([1],))])
    plan.report([1], [], [])
    plan.save(2, [("b", 4, ([2],))])
    effects = plan.finish()
    assert [job.request for job, _ in effects.publish] == ["a"]
    assert len(effects.abandon) == 1 and sorted(effects.release) == [1, 2]


# ---------------------------------------------------------------------------- loads


def test_hit_leaves_a_token_to_compute() -> None:
    plan = make()
    begin(plan)
    assert plan.external_tokens("r", found=4, computed_tokens=0, total_tokens=16) == 12
    assert plan.external_tokens("r", found=4, computed_tokens=0, total_tokens=17) == 16
    assert plan.external_tokens("r", found=4, computed_tokens=12, total_tokens=16) == 0
    assert plan.external_tokens("r", found=4, computed_tokens=3, total_tokens=17) == 0


def test_load_ends_with_every_rank_not_every_report() -> None:
    plan = make(ranks=2)
    request = begin(plan)
    order = plan.load("r", 4, 8, ([1, 2, 3],))
    assert (order.keys, order.pages, order.invalid) == ([key(1), key(2)], [[2, 3]], False)
    report = LoadReport(0, order.id, 2)
    assert not plan.report([], [], [report, report]).loaded
    assert request.load == order.id
    (ended,) = plan.report([], [], [LoadReport(1, order.id, 2)]).loaded
    assert ended.order is order and request.load == 0 and request.loaded_tokens == 8


def test_request_loaded_from_its_lowest_tier() -> None:
    plan = make()
    request = begin(plan)
    for first, where, good, said in (
        (0, "memory", 2, "memory"), (8, "flash", 0, "memory"), (8, "flash", 1, "flash"), (12, "memory", 1, "flash")
    ):
        order = plan.load("r", first, 8, ([1, 2, 3, 4, 5, 6],), where)
        plan.report([], [], [LoadReport(0, order.id, good)])
        assert request.loaded_from == said


def test_failed_load_not_repeated_for_its_request() -> None:
    plan = make(ranks=2)
    request = begin(plan)
    plan.found("r", 4)
    order = plan.load("r", 0, 16, ([1, 2, 3, 4],))
    plan.report([], [], [LoadReport(0, order.id, 4), LoadReport(1, order.id, 1)])
    assert request.load_failed
    assert plan.external_tokens("r", found=8, computed_tokens=0, total_tokens=100) == 0
    assert plan.wants("r", 8)  # what was bad is computed, and written again


def test_loading_request_not_saved() -> None:
    plan = make()
    begin(plan)
    plan.load("r", 0, 8, ([1, 2],))
    assert not plan.wants("r", 8)


def test_load_invalid_for_room_not_asked_for() -> None:
    plan = make()
    begin(plan, blocks=2)
    for first, tokens, pages in ((0, 16, [1, 2, 3, 4]), (2, 4, [1, 2]), (0, 8, [1])):
        assert plan.load("r", first, tokens, (pages,)).invalid


# ---------------------------------------------------------------------------- at random


@pytest.mark.parametrize("seed", range(200))
def test_random_steps_publish_confirmed_and_written_only(seed: int) -> None:
    """Requests come, grow, end and are preempted; steps come back late; ranks report in any order, twice, partly;
    foreign loads fail. Seen is only what was confirmed and written by all ranks, every reference comes back once,
    and none before all ranks have reported."""
    dice = random.Random(seed)
    ranks = dice.choice([1, 2, 4])
    plan = make(ranks=ranks, max_pages=dice.choice([3, 10, 1000]))
    next_page, step, wave = 1, 0, 0
    tokens: dict[str, int] = {}
    pages: dict[str, list[int]] = {}
    in_flight: list[tuple[int, list[SaveOrder]]] = []
    unreported: dict[tuple[int, int], SaveOrder] = {}
    written: dict[int, dict[int, int]] = {}
    tainted: set[int] = set()
    confirmed: set[int] = set()
    held: dict[int, list[int]] = {}
    seen: set[int] = set()

    def check(effects: Effects) -> None:
        for job, count in effects.publish:
            number = job.order.id
            assert number not in seen and number in confirmed and number not in tainted
            assert len(written[number]) == ranks and count == min(written[number].values())
            seen.add(number)
        left = list(effects.release)
        for number in [n for n in held if len(written.get(n, {})) == ranks and not plan_has(n)]:
            for page in held.pop(number):
                left.remove(page)
        assert not left

    def plan_has(number: int) -> bool:
        try:
            plan.request_of(number)
        except KeyError:
            return False
        return True

    for _ in range(120):
        move = dice.random()
        if move < 0.2:
            name = f"r{wave}"
            wave += 1
            begin(plan, name, blocks=12, first=dice.choice([0, 100, 200]))
            tokens[name], pages[name] = 0, []
        elif move < 0.6 and tokens:
            step += 1
            due = []
            for name in list(tokens):
                tokens[name] = min(48, tokens[name] + dice.randrange(9))
                while len(pages[name]) < tokens[name] // SIZE:
                    pages[name].append(next_page)
                    next_page += 1
                if plan.requests[name].stopped and dice.random() < 0.3:
                    plan.resume(name)
                    plan.found(name, dice.randrange(3))
                due.append((name, tokens[name], (pages[name],)))
            orders = plan.save(step, due)
            for order in orders:
                held[order.id] = plan.referenced(order.id)
                for rank in range(ranks):
                    unreported[(order.id, rank)] = order
            in_flight.append((step, orders))
        elif move < 0.7 and tokens:
            name = dice.choice(list(tokens))
            if dice.random() < 0.5:
                plan.end(name)
                del tokens[name]
            else:
                tokens[name], pages[name] = 0, []
        else:
            came, saves, foreign = [], [], dice.random() < 0.1
            if in_flight and dice.random() < 0.7:
                number, orders = in_flight.pop(0)
                came.append(number)
                if foreign:
                    tainted |= {o.id for o in orders}
                else:
                    confirmed |= {o.id for o in orders} - tainted
            if foreign:
                tainted |= {o.id for _, orders in in_flight for o in orders}
            for (number, rank), order in dice.sample(list(unreported.items()), dice.randrange(len(unreported) + 1)):
                good = len(order.keys) if dice.random() < 0.8 else dice.randrange(len(order.keys) + 1)
                saves += [SaveReport(rank, number, good)] * dice.choice([1, 2])
                written.setdefault(number, {})[rank] = good
                del unreported[(number, rank)]
            check(plan.report(came, saves, [], foreign_failure=foreign))
    for number, orders in in_flight:
        confirmed |= {o.id for o in orders} - tainted
        check(plan.report([number], [], []))
    for (number, rank), order in unreported.items():
        written.setdefault(number, {})[rank] = len(order.keys)
        check(plan.report([], [SaveReport(rank, number, len(order.keys))], []))
    assert plan.saves == 0 and plan.referenced_pages == 0 and not held


# ---------------------------------------------------------------------------- pages given back before their copies end


def test_released_saves_give_back_their_pages_and_never_show() -> None:
    plan = make(ranks=2)
    request = begin(plan)
    (order,) = plan.save(1, [("r", 12, ([1, 2, 3],))])
    first, second = all_ranks(plan, order)
    plan.report([1], [first], [])
    assert plan.distinct_pages == 3
    effects = plan.release()
    assert sorted(effects.release) == [1, 2, 3] and not effects.publish and plan.distinct_pages == 0
    assert plan.referenced_pages == 0 and request.saved == 0
    assert plan.release() == Effects()
    effects = plan.report([], [second], [])  # the copy ended, of pages that may be others' by now
    assert not effects.publish and not effects.release
    assert effects.abandon == [(order.id, [put for put in order.put_ids[0] if put is not None])]
    (again,) = plan.save(2, [("r", 12, ([4, 5, 6],))])
    assert again.keys == order.keys
