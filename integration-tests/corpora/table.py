"""The table of a file of records: counts and shares of each kind against the bars, and every program that is not ok."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

__all__ = ["BARS", "table"]

#: Least share of a kind's programs whose inference is one graph without anything left to eager.
BARS = {"timm": 0.98, "transformers": 0.92}
#: Least share of programs that run compiled with right results.
RUN = 0.99
STATUSES = ("ok", "eager", "wrong", "crash", "late", "idle", "unbuilt")
#: What is counted: what is unbuilt says nothing, and what is idle has nothing to compile.
COUNTED = ("ok", "eager", "wrong", "crash", "late")


def table(records: Iterable[dict[str, Any]]) -> tuple[str, list[str]]:
    """The text, and what falls short of the bars."""
    stacks: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        stacks[record["stack"]][record["kind"]].append(record)
    lines, short = [], []
    for stack, kinds in sorted(stacks.items()):
        lines += [f"stack: {stack}", *_counts(kinds), ""]
        if stack == "ours":
            short = [text for kind, rows in kinds.items() for text in shortfalls(kind, rows)]
    if "ours" in stacks and "torch" in stacks:
        lines += [*_beside(stacks["ours"], stacks["torch"]), ""]
    for stack, kinds in sorted(stacks.items()):
        lines += [*_reasons(stack, [row for rows in kinds.values() for row in rows])]
        if stack != "torch":
            lines += _failures([row for rows in kinds.values() for row in rows])
    return "\n".join(lines + short), short


def one_graph(row: dict[str, Any], part: str = "infer") -> bool:
    """Whether a program's part is one graph, with nothing left to eager."""
    found = row.get(part) or {}
    return found.get("status") == "ok" and found["graphs"] == 1 and not found["breaks"] and not found["left"]


def shortfalls(kind: str, rows: list[dict[str, Any]]) -> list[str]:
    """What of a kind is below its bars."""
    count = Counter(row["status"] for row in rows)
    counted = [row for row in rows if row["status"] in COUNTED]
    if not counted:
        return []
    found = [
        f"BELOW THE BAR: {kind}: {count[status]} {status}, the bar is 0"
        for status in ("wrong", "crash")
        if count[status]
    ]
    share = count["ok"] / len(counted)
    if share < RUN:
        found.append(f"BELOW THE BAR: {kind}: {share:.1%} run, the bar is {RUN:.0%}")
    share = sum(map(one_graph, counted)) / len(counted)
    if share < BARS.get(kind, 0.0):
        found.append(f"BELOW THE BAR: {kind}: {share:.1%} in one graph, the bar is {BARS[kind]:.0%}")
    return found


def _counts(kinds: dict[str, list[dict[str, Any]]]) -> list[str]:
    lines = [f"{'kind':14}{'counted':>9}" + "".join(f"{status:>9}" for status in STATUSES)
             + f"{'run':>8}{'1 graph':>9}{'training':>10}{'breaks':>8}{'left':>6}"
             + f"{'kernels':>9}{'seconds':>9}"]  # fmt: skip
    for kind, rows in sorted(kinds.items()):
        count = Counter(row["status"] for row in rows)
        counted = [row for row in rows if row["status"] in COUNTED]
        trained = [row for row in counted if row.get("train", {}).get("status") not in (None, "unbuilt")]
        total = max(len(counted), 1)
        parts = [row[part] for row in counted for part in ("infer", "train") if "graphs" in row.get(part, {})]
        lines.append(
            f"{kind:14}{len(counted):9}" + "".join(f"{count[status]:9}" for status in STATUSES)
            + f"{count['ok'] / total:8.1%}{sum(map(one_graph, counted)) / total:9.1%}"
            + f"{sum(one_graph(row, 'train') for row in trained) / max(len(trained), 1):10.1%}"
            + f"{sum(len(part['breaks']) for part in parts):8}{sum(len(part['left']) for part in parts):6}"
            + f"{sum(part['kernels'] for part in parts):9}{sum(row.get('total_s', 0) for row in rows):9.0f}"
        )  # fmt: skip
    return lines


def _beside(ours: dict[str, list[dict[str, Any]]], theirs: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Inference of the programs that both stacks have run."""
    lines = [f"{'beside':14}{'programs':>9}{'ours: 1 graph':>15}{'graphs':>8}{'torch: 1 graph':>16}{'graphs':>8}"]
    for kind in sorted(set(ours) & set(theirs)):
        beside = {row["name"]: row for row in theirs[kind] if row["status"] in COUNTED}
        pairs = [(row, beside[row["name"]]) for row in ours[kind] if row["status"] in COUNTED and row["name"] in beside]
        total = max(len(pairs), 1)
        sums = [sum(pair[side].get("infer", {}).get("graphs", 0) for pair in pairs) for side in (0, 1)]
        shares = [sum(one_graph(pair[side]) for pair in pairs) / total for side in (0, 1)]
        lines.append(f"{kind:14}{len(pairs):9}{shares[0]:15.1%}{sums[0]:8}{shares[1]:16.1%}{sums[1]:8}")
    return lines


def _reasons(stack: str, rows: list[dict[str, Any]]) -> list[str]:
    """The most common reasons of breaks and of what is left to eager, by the number of programs that have them."""
    count: Counter[str] = Counter()
    example: dict[str, str] = {}
    for row in rows:
        texts = {
            f"{word}: {text.split(' @ ')[0]}" for part in ("infer", "train") for word in ("breaks", "left")
            for text in row.get(part, {}).get(word, [])
        }  # fmt: skip
        count.update(texts)
        for text in texts:
            example.setdefault(text, f"{row['kind']}/{row['name']}")
    if not count:
        return []
    return [
        f"{stack}: programs by reason",
        *(f"{n:6}  {text[:200]}  ({example[text]})" for text, n in count.most_common(40)),
        "",
    ]


def _failures(rows: list[dict[str, Any]]) -> list[str]:
    lines = []
    for row in sorted(rows, key=lambda row: (row["status"], row["kind"], row["name"])):
        if row["status"] in ("ok", "idle", "unbuilt"):
            continue
        lines.append(
            f"{row['status']:7} {row['kind']}/{row['name']} ({row.get('detail', '')[:60]}): {row.get('why', '')[:300]}"
        )
        trace = row.get("trace") or next((row[p]["trace"] for p in ("infer", "train") if "trace" in row.get(p, {})), [])
        lines += [f"        {text[:160]}" for text in trace[-6:]]
    return lines
