"""Books recounted: what does not agree in them, with both numbers."""

from collections import Counter


def block_defects(pool, tables):
    """Recount a pool of cache blocks from everybody's blocks."""
    named = Counter(block for table in tables for block in table)
    problems = [
        f"block {block} has {count} references and is named {named[block]} times"
        for block, count in enumerate(pool._references)
        if count != named[block]
    ]
    if len(set(pool._free)) != len(pool._free) or 0 in pool._free:
        problems.append(f"free blocks {sorted(pool._free)} have a block twice, or block 0")
    used = sum(count > 0 for count in pool._references)
    if used + pool.num_free != pool.capacity:
        problems.append(f"{used} blocks used and {pool.num_free} free are not {pool.capacity}")
    problems += [
        f"block {block} is kept, has {pool._references[block]} references and the label "
        f"{pool._labels.get(block)}"
        for block in pool._kept
        if pool._references[block] or block not in pool._labels or block in pool._free
    ]
    if {content: block for block, content in pool._labels.items()} != pool._by_content:
        problems.append(
            f"{len(pool._labels)} blocks have labels and {len(pool._by_content)} are found"
        )
    return problems


def engine_defects(engine):
    """Recount the cache of an engine of text generation between two steps."""
    return block_defects(engine._pool, (text.blocks for text in engine._scheduler.running))


def drafter_defects(drafter):
    """Recount the cache of a model that guesses."""
    return block_defects(drafter._pool, (shadow.blocks for shadow in drafter._shadows.values()))


def slot_defects(table):
    """Recount the slots of live sequences, and what became of all of them."""
    taken = {key: life.slot for key, life in table._lives.items()}
    problems = []
    if len(set(taken.values())) != len(taken) or not set(taken.values()) <= {
        *range(table.capacity)
    }:
        problems.append(f"slots {taken} are taken, of {table.capacity}")
    holders = {slot: key for key, slot in taken.items()}
    if table._holders != holders or {*table._spare} != {*range(table.capacity)} - {*holders}:
        problems.append(f"{table._holders} hold slots and {[*table._spare]} are spare, of {taken}")
    begun = table.events["begun"]
    gone = table.events.total() - begun
    if begun - gone != len(taken):
        problems.append(f"{begun} begun - {gone} gone, but {len(taken)} live")
    return problems
