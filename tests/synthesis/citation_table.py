"""The measured table of docs/answers.md; run it to print the table: ``python tests/synthesis/citation_table.py``."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field

from citation_cases import FALSE_KINDS, LANGUAGES, TRUE_KINDS, cases


@dataclass
class Rates:
    """How often the check was right.

    Attributes:
        right: Cases decided rightly, by language and kind.
        all: Cases, by language and kind.
    """

    right: Counter[tuple[str, str]] = field(default_factory=Counter)
    all: Counter[tuple[str, str]] = field(default_factory=Counter)

    def counts(self, languages: tuple[str, ...]) -> tuple[int, int, int, int]:
        """True sentences accepted and rejected, false sentences rejected and accepted."""
        keep = [key for key in self.all if key[0] in languages]
        true = [key for key in keep if key[1] in TRUE_KINDS]
        false = [key for key in keep if key[1] in FALSE_KINDS]
        accepted, rejected = sum(self.right[key] for key in true), sum(self.right[key] for key in false)
        return accepted, sum(self.all[k] for k in true) - accepted, rejected, sum(self.all[k] for k in false) - rejected

    def of(self, languages: tuple[str, ...] = LANGUAGES) -> dict[str, float]:
        """Precision and recall, with accepting the true and with finding the false as the aim."""
        accepted, lost, rejected, missed = self.counts(languages)
        return {
            "supported precision": accepted / (accepted + missed),
            "supported recall": accepted / (accepted + lost),
            "unsupported precision": rejected / (rejected + lost),
            "unsupported recall": rejected / (rejected + missed),
        }


def measured(half: str) -> Rates:
    """Check all cases of one half, ``dev`` or ``held``."""
    rates = Rates()
    for case in cases():
        if case.half == half:
            checks = case.checked().checks
            supported = bool(checks) and all(check.supported for check in checks)
            rates.all[case.language, case.kind] += 1
            rates.right[case.language, case.kind] += supported == case.supported
    return rates


def table() -> str:
    """Both halves as Markdown."""
    dev, held = measured("dev"), measured("held")
    lines = ["| kind | should be | en | es | th | all held-out | dev |", "|---|---|---|---|---|---|---|"]
    for kind in (*TRUE_KINDS, *FALSE_KINDS):
        aim = "supported" if kind in TRUE_KINDS else "unsupported"
        cells = [f"{held.right[lang, kind]}/{held.all[lang, kind]}" for lang in LANGUAGES]
        cells += [
            f"{sum(r.right[lang, kind] for lang in LANGUAGES)}/{sum(r.all[lang, kind] for lang in LANGUAGES)}"
            for r in (held, dev)
        ]
        lines.append(f"| {kind} | {aim} | {' | '.join(cells)} |")
    lines += ["", "| held-out half | cases | " + " | ".join(held.of()) + " |", "|---|---|" + "---|" * 4]
    for name, languages in (*((lang, (lang,)) for lang in LANGUAGES), ("all", LANGUAGES)):
        shown = " | ".join(f"{value:.3f}" for value in held.of(languages).values())
        lines.append(f"| {name} | {sum(held.counts(languages))} | {shown} |")
    shown = " | ".join(f"{value:.3f}" for value in dev.of().values())
    lines.append(f"| (dev, all) | {sum(dev.counts(LANGUAGES))} | {shown} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(f"{table()}\n")
