# SPDX-License-Identifier: Apache-2.0
"""``meridian verify``: is every subscription at the same place in every region? Exit: 0 yes, 1 no, 2 unknown."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final
from uuid import uuid4

import click
from rich.console import Console

from meridian_verifier.cluster import Cluster, ClusterError
from meridian_verifier.report.shown import markup
from meridian_verifier.session import JavaMissing, check_java
from meridian_verifier.source.regions import Region, RegionsError, parse_regions, read_regions_file, with_authorities
from meridian_verifier.wanted_lags import max_lags

COULD_NOT_TELL: Final = 2
INTERRUPTED: Final = 130


@click.command()
@click.option("--regions-file", type=click.Path(path_type=Path), help="The regions.json that `meridian up` writes.")
@click.option("--regions", help="Or the regions themselves: us-east=http://127.0.0.1:8080,us-west=...")
@click.option("--topics", help="Only topics whose full name matches: a glob, or re: and a regular expression.")
@click.option(
    "--max-lag", type=click.FloatRange(min=0), default=2.0, show_default=True, help="Seconds regions may be behind."
)
@click.option(
    "--max-lags-from-cluster",
    is_flag=True,
    help="In a pod: use spec.maxLag of a subscription's ReplicatedSubscription, if there is one.",
)
@click.option(
    "--max-lags-namespace",
    multiple=True,
    metavar="NAMESPACE",
    help="With --max-lags-from-cluster: read only this namespace. Repeatable. Default: all namespaces.",
)
@click.option(
    "--ca-dir",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Certificate authorities in PEM: a file per region, named after it, and `default` for the others.",
)
@click.option("--report-dir", type=click.Path(path_type=Path, file_okay=False), help="Write the HTML report here.")
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False),
    help="File with a token for the export (`meridian tokens create --scope export`).",
)
@click.option(
    "--pulsar-token-file",
    type=click.Path(exists=True, dir_okay=False),
    help="File with a token for Apache Pulsar regions, allowed to read topic statistics.",
)
@click.option("--master", default="local[2]", show_default=True, help="The Spark master.")
@click.option(
    "--spark-conf",
    multiple=True,
    metavar="KEY=VALUE",
    help="A Spark setting; overrides this program's own. Repeatable.",
)
@click.option(
    "--verdict-configmap",
    metavar="NAME",
    help="In a pod: write the verdict to ConfigMap meridian-verdict-NAME of its namespace, for the operator.",
)
@click.option(
    "--verdict-valid",
    type=click.IntRange(min=1),
    default=86_400,
    show_default=True,
    help="Seconds for which the operator trusts an aligned verdict.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the verdict as one JSON object, progress on standard error."
)
def verify(
    regions_file: Path | None,
    regions: str | None,
    topics: str | None,
    max_lag: float,
    max_lags_from_cluster: bool,
    max_lags_namespace: tuple[str, ...],
    ca_dir: Path | None,
    report_dir: Path | None,
    token_file: str | None,
    pulsar_token_file: str | None,
    master: str,
    spark_conf: tuple[str, ...],
    verdict_configmap: str | None,
    verdict_valid: int,
    as_json: bool,
) -> None:
    """Prove with Spark, from what the regions export, that every subscription has the same progress in every region.

    Exit code 0: aligned. 1: misaligned. 2: unknown.
    """
    console = Console(stderr=True, highlight=False)
    try:
        named = _named(regions_file, regions)
        if ca_dir is not None:
            named = with_authorities(named, ca_dir)
        settings = _spark_settings(spark_conf)
        check_java()
        lags = max_lags(Cluster(), max_lags_namespace) if max_lags_from_cluster else {}
    except (RegionsError, JavaMissing, ClusterError) as error:
        console.print(f"[red]Error:[/] {markup(str(error))}", soft_wrap=True)
        raise SystemExit(COULD_NOT_TELL) from None
    # Spark's classes take a second to load: not before they are certainly needed.
    from meridian_verifier.job import Request
    from meridian_verifier.job import verify as run
    from meridian_verifier.report.configmap import Run, rows, whole
    from meridian_verifier.report.page import page
    from meridian_verifier.report.publishing import NotPublished, publish
    from meridian_verifier.report.summary import summary
    from meridian_verifier.report.terminal import show

    request = Request(named, topics, round(max_lag * 1000), lags, master, token_file, settings, pulsar_token_file)
    try:
        with console.status("starting") as status:

            def tell(sentence: str) -> None:
                status.update(markup(sentence))
                console.print(f"[dim]{datetime.now(UTC):%H:%M:%S}[/] {markup(sentence)}", soft_wrap=True)

            verdict, timing = run(request, tell)
    except Exception as error:
        # A failure of any kind says nothing about the regions, unlike Python's own exit code 1.
        console.print(f"[red]Error:[/] {type(error).__name__}: {markup(str(error))}", soft_wrap=True)
        raise SystemExit(COULD_NOT_TELL) from error
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    written = None
    if report_dir is not None:
        report_dir.mkdir(parents=True, exist_ok=True)
        written = report_dir / f"verify-{datetime.now(UTC):%Y%m%d-%H%M%S}.html"
        written.write_text(page(verdict), encoding="utf-8")
    if as_json:
        click.echo(json.dumps(summary(verdict, timing, str(written) if written else None)))
    else:
        show(verdict, Console())
        if written:
            click.echo(f"report: {written}")
    if verdict_configmap is not None:
        named_run = Run(verdict_configmap, uuid4().hex, datetime.now(UTC), timedelta(seconds=verdict_valid))
        try:
            for left in publish(Cluster(), named_run, whole(verdict), rows(verdict)):
                console.print(f"[yellow]part of an earlier verdict was left behind:[/] {markup(left)}", soft_wrap=True)
        except (NotPublished, ClusterError) as error:
            console.print(f"[red]Error:[/] the verdict was not published: {markup(str(error))}", soft_wrap=True)
            raise SystemExit(COULD_NOT_TELL) from None
    raise SystemExit(verdict.exit_code)


def _spark_settings(given: tuple[str, ...]) -> dict[str, str]:
    settings = {}
    for one in given:
        key, equals, value = one.partition("=")
        if not equals or not key.startswith("spark."):
            raise click.BadParameter(f"{one!r}: expected spark.KEY=VALUE", param_hint="--spark-conf")
        settings[key] = value
    return settings


def _named(regions_file: Path | None, regions: str | None) -> list[Region]:
    if (regions_file is None) == (regions is None):
        raise RegionsError("give either --regions-file or --regions")
    return read_regions_file(regions_file) if regions_file is not None else parse_regions(regions or "")
