"""`d2v doctor`: check that a model is read correctly."""

from __future__ import annotations

import typer

from decoder2vec.cli.options import AttentionOption, Device, Dtype, Model
from decoder2vec.cli.output import info, table


def doctor(
    model: Model,
    attention: AttentionOption = None,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Check on your own model that it is read correctly; exit code 1 if a check fails."""
    from decoder2vec.analysis.doctor import doctor as run_doctor

    checks = run_doctor(model, attention=attention, device=device, dtype=dtype, notify=info)
    table(
        ("check", "", "measured"),
        [(check.name, "ok" if check.passed else "FAILED", check.detail) for check in checks],
    )
    failed = [check.name for check in checks if not check.passed]
    if failed:
        info(f"{len(failed)} of {len(checks)} checks failed: {', '.join(failed)}")
        raise typer.Exit(1)
    typer.echo(f"All {len(checks)} checks passed.")
