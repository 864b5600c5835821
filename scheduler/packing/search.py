"""The exact search for blocks with lifetimes, in code that Python and Numba both run.

Time is cut into sections (maximal sets of blocks alive together), each is filled from the bottom,
and placed blocks do not move. A step picks a section above which all gaps are closed, and branches
on the block that covers its floor: one of those that rest there, or none, which lifts the floor to
the next possible rest. So every packing in which no block can sink is visited once. A branch ends
when

- a section's floor and what is still to be stacked on it exceed the capacity,
- a block could sink into a gap that stays empty (such a packing is visited elsewhere),
- the same blocks were left over the same floors before, and that failed.

Parts of time that no remaining block connects are solved in sequence, and a failure of one returns
to their separation. Section inference, dominance and decomposition are in the spirit of
Moffitt, "MiniMalloc" (ASPLOS 2023); branching on sections and the memory of failures are ours.

Lists or int64 arrays hold everything, for both interpreters.
"""

from __future__ import annotations

from typing import Any, NamedTuple

UNREACHED = 1 << 60
# Added to a section's number of choices, which it exceeds: the section is barred.
BLOCKED = 1 << 40
HASH_MASK = (1 << 61) - 1
HASH_FACTOR = 1152921504606846883
LIFT = -1

SOLVED, IMPOSSIBLE, UNDECIDED = 1, 0, -1

FEWEST, TIGHTEST, LOWEST, LEADER = range(4)
"""The choice of the next section: the fewest choices, the least slack, the lowest floor, or the
rest of the first block in the order. A section with a single choice always comes first."""

RULES = (LOWEST, FEWEST, TIGHTEST, LEADER)


class SearchBlocks(NamedTuple):
    """The blocks. Sections are numbered in order of time; `fixed` is -1 for free blocks."""

    first: Any
    last: Any
    size: Any
    alignment: Any
    fixed: Any
    order: Any
    by_first: Any
    key: Any


class SearchState(NamedTuple):
    """The state of the search: arrays by block, by section, by depth, and of unsolved parts.

    Rows of `floors`, `tops` and `loads` belong to a depth. `floors` may be above the `tops` of
    placed blocks; `loads` are the bytes that are still to be placed on them.
    """

    placed: Any
    offset: Any
    rest: Any
    lowest: Any
    choices: Any
    floors: Any
    tops: Any
    loads: Any
    lo: Any
    hi: Any
    parent: Any
    agenda: Any
    parts: Any
    section: Any
    option: Any
    option_end: Any
    taken: Any
    lift: Any
    failed_key: Any
    options: Any
    part_lo: Any
    part_hi: Any
    part_parent: Any
    part_next: Any
    failed: Any
    position: Any


def start(blocks: SearchBlocks, state: SearchState) -> None:
    state.lo[0] = 0
    state.hi[0] = len(state.lowest) - 1
    state.agenda[0] = -1
    state.position[0] = -1
    state.parts[0] = _split(blocks, state, 0, 0, -1)


def search(blocks: SearchBlocks, state: SearchState, capacity: int, rule: int, steps: int) -> int:
    """Search `capacity` for a packing of `blocks` in at most `steps` steps; return the status.

    `rule` ranks the sections to cover. `state` allows to resume later.
    """
    depth = state.position[0]
    if depth < 0:
        # Nothing is on the agenda of a problem without blocks.
        if state.position[1] < 0:
            return SOLVED
        depth = 0
        _enter(blocks, state, depth, state.position[1], capacity, rule)
    for _ in range(steps):
        if state.option[depth] < state.option_end[depth]:
            # The next depth needs a row for itself, and one for what it takes.
            if depth + 2 >= len(state.lo):
                break
            _take(blocks, state, depth)
            part = state.position[1]
            if part < 0:
                return SOLVED
            depth += 1
            _enter(blocks, state, depth, part, capacity, rule)
        else:
            key = state.failed_key[depth]
            # All options failed. The table overwrites the entry at that place, which only costs
            # time.
            if key > 0:
                state.failed[key % len(state.failed)] = key
            # The choice that created this part is the cause. Later decisions belong to other parts
            # and cannot change it.
            target = state.parent[depth]
            if target < 0:
                return IMPOSSIBLE
            while depth > target:
                depth -= 1
                if state.taken[depth] >= 0:
                    state.placed[state.taken[depth]] = 0
    state.position[0] = depth
    return UNDECIDED


def _enter(
    blocks: SearchBlocks, state: SearchState, depth: int, part: int, capacity: int, rule: int
) -> None:
    state.lo[depth] = state.part_lo[part]
    state.hi[depth] = state.part_hi[part]
    state.parent[depth] = state.part_parent[part]
    state.agenda[depth] = state.part_next[part]
    # The options of all depths are a stack in one array. It is empty until some are listed, so that
    # an early return is a failure.
    begin = state.option_end[depth - 1] if depth > 0 else 0
    state.option[depth] = begin
    state.option_end[depth] = begin
    state.taken[depth] = LIFT
    state.failed_key[depth] = 0
    key = _raise_floors(blocks, state, depth, capacity)
    if key < 0 or state.failed[key % len(state.failed)] == key:
        return
    if _mark_gaps(blocks, state, depth):
        return
    state.failed_key[depth] = key
    section = _choose(state, depth, capacity, rule)
    limit = capacity - state.loads[depth][section]
    # With one choice and no slack for a bare floor, there is nothing to branch on.
    is_forced = state.choices[section] == 1 and state.floors[depth][section] == limit
    if rule == LEADER and not is_forced:
        section = _find_under_leader(blocks, state, depth, section)
    state.section[depth] = section
    _collect(blocks, state, depth, capacity - state.loads[depth][section])


def _raise_floors(blocks: SearchBlocks, state: SearchState, depth: int, capacity: int) -> int:
    """Find the rest of each block, and raise floors at `depth` of `state` to the lowest of them.

    Return a hash of the floors and the remaining blocks, or -1 if they exceed `capacity`.
    """
    lo, hi = state.lo[depth], state.hi[depth]
    floors, lowest, choices = state.floors[depth], state.lowest, state.choices
    key = 0
    for section in range(lo, hi + 1):
        lowest[section] = UNREACHED
        choices[section] = 0
    for block in blocks.order:
        first, last = blocks.first[block], blocks.last[block]
        if state.placed[block] or first < lo or last > hi:
            continue
        # By XOR of random keys: independent of the order in which the others were placed.
        key ^= blocks.key[block]
        height = 0
        for section in range(first, last + 1):
            if floors[section] > height:
                height = floors[section]
        if blocks.alignment[block] > 1:
            height = -(-height // blocks.alignment[block]) * blocks.alignment[block]
        if blocks.fixed[block] >= 0:
            # A block fixed below this floor cannot be placed any more.
            if height > blocks.fixed[block]:
                return -1
            height = blocks.fixed[block]
        state.rest[block] = height
        for section in range(first, last + 1):
            if height < lowest[section]:
                lowest[section] = height
                choices[section] = 1
            elif height == lowest[section]:
                choices[section] += 1
    return _hash_floors(state, depth, capacity, key)


def _hash_floors(state: SearchState, depth: int, capacity: int, key: int) -> int:
    """Raise floors at `depth` of `state`, and add them to the hash `key`; -1 above `capacity`."""
    floors, tops, loads = state.floors[depth], state.tops[depth], state.loads[depth]
    for section in range(state.lo[depth], state.hi[depth] + 1):
        if state.choices[section] > 0:
            if state.lowest[section] + loads[section] > capacity:
                return -1
            # Nothing can ever be placed below the lowest rest.
            floors[section] = state.lowest[section]
            # Equal floors over different tops differ: a block needs support from below.
            for value in (floors[section], tops[section], section):
                key = ((key * HASH_FACTOR) ^ value) & HASH_MASK
    return key


def _mark_gaps(blocks: SearchBlocks, state: SearchState, depth: int) -> bool:
    """Bar sections at `depth` of `state` over which one of `blocks` would rest above an open gap.

    The gap must be filled first. Return True if a block could sink into a gap for good.
    """
    lo, hi = state.lo[depth], state.hi[depth]
    floors, tops, choices = state.floors[depth], state.tops[depth], state.choices
    for block in blocks.order:
        first, last = blocks.first[block], blocks.last[block]
        if state.placed[block] or first < lo or last > hi:
            continue
        top, floor, height = 0, UNREACHED, state.rest[block]
        for section in range(first, last + 1):
            if tops[section] > top:
                top = tops[section]
            if floors[section] < floor:
                floor = floors[section]
        # A gap is filled before the block that bridges it; otherwise both orders would be visited.
        if floor < height:
            for section in range(first, last + 1):
                if floors[section] == height and choices[section] < BLOCKED:
                    choices[section] += BLOCKED
        # Nothing can be placed between tops and floors any more: a block that fits there can sink,
        # and the packing with the sunken block is visited elsewhere.
        if blocks.fixed[block] < 0 and top + blocks.size[block] <= floor:
            top = -(-top // blocks.alignment[block]) * blocks.alignment[block]
            if top + blocks.size[block] <= floor:
                return True
    return False


def _choose(state: SearchState, depth: int, capacity: int, rule: int) -> int:
    """Choose the next section at `depth` of `state` by `rule`; the lowest one is never barred."""
    best, best_rank, best_tie = -1, UNREACHED, UNREACHED
    for section in range(state.lo[depth], state.hi[depth] + 1):
        count = state.choices[section]
        if count == 0 or count >= BLOCKED:
            continue
        floor = state.floors[depth][section]
        slack = capacity - floor - state.loads[depth][section]
        if slack > 0:
            count += 1
        # A single choice is rank 1 by every rule; ranks of the rules begin at 2.
        rank, tie = count, floor
        if count > 1 and rule == TIGHTEST:
            rank, tie = slack + 2, count
        elif count > 1 and rule == LOWEST:
            rank, tie = floor + 2, slack
        if rank < best_rank or (rank == best_rank and tie < best_tie):
            best, best_rank, best_tie = section, rank, tie
    return best


def _find_under_leader(blocks: SearchBlocks, state: SearchState, depth: int, section: int) -> int:
    lo, hi = state.lo[depth], state.hi[depth]
    floors, choices = state.floors[depth], state.choices
    leader = -1
    for block in blocks.order:
        first, last = blocks.first[block], blocks.last[block]
        if state.placed[block] or first < lo or last > hi:
            continue
        height = state.rest[block]
        if leader >= 0 and height >= state.rest[leader]:
            continue
        best = first
        for other in range(first, last + 1):
            if floors[other] != height or choices[other] >= BLOCKED:
                best = -1
                break
            if choices[other] < choices[best]:
                best = other
        if best >= 0:
            leader, section = block, best
    return section


def _collect(blocks: SearchBlocks, state: SearchState, depth: int, limit: int) -> None:
    section = state.section[depth]
    floor = state.floors[depth][section]
    begin = end = state.option[depth]
    for block in blocks.order:
        if (
            not state.placed[block]
            and blocks.first[block] <= section <= blocks.last[block]
            and state.rest[block] == floor
            and _is_supported(blocks, state, depth, block)
            and not _is_listed(blocks, state, begin, end, block)
        ):
            state.options[end] = block
            end += 1
    # A bare floor costs slack: only with slack left may the section wait for a higher block.
    if floor < limit:
        state.lift[depth] = _find_next_floor(blocks, state, section, floor)
        if state.lift[depth] <= limit:
            state.options[end] = LIFT
            end += 1
    state.option_end[depth] = end


def _is_supported(blocks: SearchBlocks, state: SearchState, depth: int, block: int) -> bool:
    if blocks.fixed[block] >= 0:
        return True
    top = 0
    for section in range(blocks.first[block], blocks.last[block] + 1):
        if state.tops[depth][section] > top:
            top = state.tops[depth][section]
    alignment = blocks.alignment[block]
    return bool(-(-top // alignment) * alignment == state.rest[block])


def _is_listed(blocks: SearchBlocks, state: SearchState, begin: int, end: int, block: int) -> bool:
    for place in range(begin, end):
        other = state.options[place]
        if (
            blocks.size[other] == blocks.size[block]
            and blocks.first[other] == blocks.first[block]
            and blocks.last[other] == blocks.last[block]
            and blocks.alignment[other] == blocks.alignment[block]
            and blocks.fixed[other] == blocks.fixed[block]
        ):
            return True
    return False


def _find_next_floor(blocks: SearchBlocks, state: SearchState, section: int, floor: int) -> int:
    best = UNREACHED
    for block in blocks.order:
        first, last = blocks.first[block], blocks.last[block]
        if state.placed[block] or first > section or last < section:
            continue
        if state.rest[block] > floor:
            best = min(best, state.rest[block])
            continue
        for other in blocks.order:  # blocks that may lie under it, outside of the section
            if state.placed[other] or blocks.first[other] > last or blocks.last[other] < first:
                continue
            if blocks.last[other] < section or blocks.first[other] > section:
                top = state.rest[other] + blocks.size[other]
                if floor < top < best:
                    best = top
    return best


def _take(blocks: SearchBlocks, state: SearchState, depth: int) -> None:
    block = state.options[state.option[depth]]
    state.option[depth] += 1
    state.taken[depth] = block
    state.floors[depth + 1][:] = state.floors[depth]
    state.tops[depth + 1][:] = state.tops[depth]
    state.loads[depth + 1][:] = state.loads[depth]
    if block == LIFT:
        state.floors[depth + 1][state.section[depth]] = state.lift[depth]
    else:
        offset = state.floors[depth][state.section[depth]]
        state.placed[block] = 1
        state.offset[block] = offset
        top = offset + blocks.size[block]
        for section in range(blocks.first[block], blocks.last[block] + 1):
            state.floors[depth + 1][section] = top
            state.tops[depth + 1][section] = top
            state.loads[depth + 1][section] -= blocks.size[block]
    state.parts[depth + 1] = _split(blocks, state, depth, state.parts[depth], depth)


def _split(blocks: SearchBlocks, state: SearchState, depth: int, part: int, parent: int) -> int:
    """Append the parts of sections at `depth` that `blocks` connect; store the agenda's head.

    Numbers begin at `part`, and all get the same `parent`. Return the total number of parts.
    """
    lo, hi = state.lo[depth], state.hi[depth]
    head = state.agenda[depth]
    reach = -1
    for block in blocks.by_first:
        first, last = blocks.first[block], blocks.last[block]
        if state.placed[block] or first < lo or last > hi:
            continue
        if first > reach:
            state.part_lo[part] = first
            state.part_parent[part] = parent
            state.part_next[part] = head
            head = part
            part += 1
        reach = max(reach, last)
        state.part_hi[part - 1] = reach
    state.position[1] = head
    return part


HELPERS = (
    _enter,
    _hash_floors,
    _raise_floors,
    _mark_gaps,
    _choose,
    _find_under_leader,
    _collect,
    _is_supported,
    _is_listed,
    _find_next_floor,
    _take,
    _split,
)
"""The functions that `search` calls, for a compiler."""
