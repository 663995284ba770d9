"""The advice in words: what is recommended, why, and what it rests on."""

from __future__ import annotations

import math

from mirrord.analysis.assess import Terms
from mirrord.analysis.cost import TIE, Advice, Choice
from mirrord.analysis.numbers import Workload
from mirrord.analysis.prices import Prices
from mirrord.analysis.reports.common import TimeAxis, interval_words, listed, rate_words
from mirrord.analysis.reports.tables import grouped
from mirrord.core.units import format_duration, format_size, parse_duration, parse_size

#: The mode of all kinds of volumes; the others are those of live mirrors of images.
EVERYWHERE = "async"


def assumptions(terms: Terms, prices: Prices) -> tuple[str, ...]:
    """What the numbers rest on, in short: printed with them."""
    money = prices.currency
    limits = [
        *([f"copy at most {interval_words(terms.rpo_s)} old"] if terms.rpo_s is not None else []),
        *(
            [f"at most {format_size(terms.loss_bytes)} lost"]
            if terms.loss_bytes is not None
            else []
        ),
    ]
    link = "any, in steps of about 10 %" if terms.link is None else str(terms.link)
    return (
        f"prices: link {prices.link:g} {money} per Mbit/s and month, bytes sent "
        f"{prices.transfer:g} {money} per GiB, snapshots {prices.space:g} {money} per GiB and "
        f"month, lost data {prices.lost.text} {money} per GiB, {prices.failures:g} failures a "
        "year; the defaults are only examples",
        f"mirror: volume {terms.kind}, link {link}, {format_duration(terms.overhead_s)} per update "
        f"besides its transfer, {terms.keep_source} and {terms.keep_destination} snapshots kept"
        + (f"; limits: {', '.join(limits)}" if limits else ""),
    )


def method(terms: Terms, prices: Prices) -> tuple[str, ...]:
    """How it was computed, in words."""
    money = prices.currency
    links = (
        "Each mode is evaluated on all links from the slowest that carries it, in steps of about "
        "10 % (the series E24), and shown on the one on which its total is lowest. (Set the "
        "available link with --link.)"
        if terms.link is None
        else "All modes share the given link, which costs the rate of its fastest hours; an "
        "unlimited link is not priced."
    )
    return (
        f"The annual cost is: the link, at {prices.link:g} {money} per Mbit/s and month; "
        f"bytes sent, at {prices.transfer:g} {money} per GiB; space of snapshots, at "
        f"{prices.space:g} {money} per GiB and month; and {prices.failures:g} failures, each "
        f"with the expected loss at {prices.lost.text} {money} per GiB lost, by the hour at which "
        "it was written. The prices are options; the defaults are only examples. The trace is "
        "taken to be representative of the year.",
        f"{links} The link on which lag and loss are computed is the one that is priced. It "
        "carries a schedule if all updates together take no longer than the trace; updates that "
        "are late make the copy older, and count by the loss. --rpo and --max-loss limit both. "
        f"Totals that differ by less than {100 * TIE:g} % are called the same.",
        "A synchronous mirror loses nothing, but each write waits for the link, which needs the "
        "peak rate of the busiest second. Semi-synchronous: writers continue as long as no write "
        "arrives later than the bound; the writes of a second are taken to come together. The cost "
        "of waiting for a distant disk is not included.",
        "In the plot of cost against loss a line connects the choices that no other choice beats "
        "in both: between them the price of lost data decides. A choice remains the cheapest "
        "between the two prices given. Intervals of which the trace has fewer than four are shown, "
        "but not recommended.",
        f"An update's snapshot is taken at the end of its interval; its transfer begins "
        f"{format_duration(terms.overhead_s)} later, or when the previous update has ended. After "
        "the end of the trace the updates go on until all has arrived.",
    )


def money_words(amount: float, currency: str) -> str:
    """`1 240 EUR`: without decimals from three digits on."""
    digits = 0 if abs(amount) >= 99.5 else 2
    return f"{grouped(f'{amount:,.{digits}f}')} {currency}"


def sentence(workload: Workload, advice: Advice, terms: Terms, prices: Prices) -> str:
    """The conclusion on a trace."""
    best, money = advice.best, prices.currency
    text = (
        f"{workload.name}: {_lead(workload, advice, terms)} It costs "
        f"{money_words(best.total, money)} a year: {money_words(best.running_cost, money)} to run "
        f"and {money_words(best.loss_cost, money)} of expected loss "
        f"({format_size(best.expected)} on average, {_at_worst(best)} at worst); {_age(best)}"
    )
    others = [e for e in advice.choices if e.usable and e.sure and e is not best]
    if advice.ties:
        names = listed([each.name for each in advice.ties])
        text += (
            f"; {names} cost{'s' if len(advice.ties) == 1 else ''} the same within {100 * TIE:g} %"
        )
    elif others and best.usable:
        second = min(others, key=lambda each: each.total)
        text += f"; next best is {_on_link(second)} at {money_words(second.total, money)}"
    text += "."
    if others and best.usable and not advice.ties and (span := _span(advice, prices)):
        text += f" It remains the cheapest {span}."
    if best.mode != EVERYWHERE:
        text += " It is a mode of live mirrors, which are for images and block devices"
        usable = best_schedule(advice)
        text += (
            "."
            if usable is None
            else (
                f": for other volumes use {_on_link(usable)}, at "
                f"{money_words(usable.total, money)} and with {format_size(usable.expected)} lost "
                f"on average, {_at_worst(usable)} at worst."
            )
        )
    return (
        text
        + _sensitivity(workload, advice, terms, prices)
        + _excluded(advice, terms.link is not None)
    )


def _at_worst(each: Choice) -> str:
    """The maximum loss, rounded up: given as `--max-loss`, it is accepted."""
    text = format_size(each.worst)
    if parse_size(text) >= each.worst:
        return text
    number, unit = text.split()
    half_digit = 0.5 * 10.0 ** -len(number.partition(".")[2])
    return format_size(each.worst + half_digit * parse_size(f"1 {unit}"))


def _age(each: Choice) -> str:
    """How old the copy gets, rounded up: given as `--rpo`, it is accepted."""
    if each.mode == "sync":
        return "the copy is up to date"
    if each.at_least:
        return f"the copy is at least {interval_words(math.floor(each.lag_s))} old at its worst"
    # Long times are shown in two units: the first step that is not less when it is read again.
    for step_s in (0.1, 1, 60, 3600, 86400):
        words = interval_words(math.ceil(each.lag_s / step_s) * step_s)
        if parse_duration(words) >= each.lag_s:
            break
    return f"the copy is at most {words} old"


def _sensitivity(workload: Workload, advice: Advice, terms: Terms, prices: Prices) -> str:
    """A sentence on the busiest minute: whether it decides."""
    quieter = advice.quieter
    if quieter is None or workload.quieter is None or workload.busiest_ns is None:
        return ""
    size = format_size(workload.bytes_written - workload.quieter.bytes_written)
    at = TimeAxis(workload, terms.zone).words(workload.busiest_ns[0])
    text = (
        f" Without the busiest minute ({at}: {size} of {format_size(workload.bytes_written)} "
        "written) "
    )
    total = money_words(quieter.best.total, prices.currency)
    if not quieter.best.usable:
        return f"{text}nothing is within the limits either."
    if (quieter.best.name, quieter.best.link) == (advice.best.name, advice.best.link):
        return f"{text}the advice is the same, at {total}."
    return f"{text}it would be {_on_link(quieter.best)}, at {total}: check that it is typical."


def _excluded(advice: Advice, given: bool) -> str:
    """The choices that are not considered, and why. given: whether the link is."""
    text = ""
    slow = [each.name for each in advice.choices if not each.fits]
    if slow and advice.best.fits:
        if given:
            text += f" The given link is too slow for {listed(slow)}."
        else:
            text += f" Their fixed times alone take longer than the trace with {listed(slow)}."
    beyond = [each.name for each in advice.choices if each.fits and not each.accepted]
    if beyond and advice.best.usable:
        text += f" The limits are exceeded by {listed(beyond)}."
    unsure = [each.name for each in advice.choices if not each.sure]
    if unsure and judges_schedules(advice):
        text += f" The trace is too short to judge {listed(unsure)}."
    return text


def _on_link(each: Choice) -> str:
    """`'every 5 min' over 16 Mbit/s`."""
    return f"'{each.name}'" + (f" over {rate_words(each.link)}" if each.link < math.inf else "")


def best_schedule(advice: Advice) -> Choice | None:
    """The cheapest schedule that the link carries and the trace can judge."""
    usable = [e for e in advice.choices if e.mode == EVERYWHERE and e.usable and e.sure]
    return min(usable, key=lambda each: each.total, default=None)


def judges_schedules(advice: Advice) -> bool:
    """Whether the trace is long enough for any schedule."""
    return any(each.sure for each in advice.choices if each.mode == "async")


def _lead(workload: Workload, advice: Advice, terms: Terms) -> str:
    """The recommendation; or, without one, the reason and the closest choice."""
    best = advice.best
    if best.fits and not best.accepted:
        over = "" if terms.link is None else "over the given link "
        return (
            f"{over}no choice that the trace can judge is within the limits; {_on_link(best)} has "
            "the most recent copy."
        )
    if not best.fits:
        return (
            "the given link is too slow for every choice that the trace can judge; "
            f"'{best.name}' needs the slowest link."
        )
    if not judges_schedules(advice):
        span = interval_words(round(workload.span_s)) if workload.span_s >= 1 else "a moment"
        kind = "synchronous modes" if best.mode != "async" else "modes"
        return (
            f"the trace lasts only {span}: too short to judge a schedule, which takes four "
            f"intervals (set shorter ones with --intervals). Of the {kind} {_on_link(best)} costs "
            "least."
        )
    link = "" if math.isinf(best.link) else f" over a link of {rate_words(best.link)}"
    return f"use '{best.name}'{link}."


def _span(advice: Advice, prices: Prices) -> str:
    """The prices of lost data between which the recommendation holds; "" without a price."""
    low, high = advice.from_factor, advice.to_factor
    lost = prices.lost
    if not lost.clauses and not lost.otherwise:
        return ""
    if low <= 0 and math.isinf(high):
        return "whatever lost data costs"
    if lost.clauses:  # prices by the hour: all of them times a factor
        given, one, other = " times the given prices", _factor(low), _factor(high)
    else:
        given = f" {prices.currency} per GiB (assumed: {_digits(lost.otherwise)})"
        one, other = _round(low * lost.otherwise), _round(high * lost.otherwise)
    if math.isinf(high):
        return f"as long as lost data costs at least {one}{given}"
    if low <= 0:
        return f"as long as lost data costs at most {other}{given}"
    return f"as long as lost data costs {one} to {other}{given}"


def _round(price: float) -> str:
    """A price rounded to two digits: `830`, `10 000`."""
    return "" if math.isinf(price) else _digits(float(f"{price:.2g}"))


def _digits(price: float) -> str:
    return grouped(f"{price:,.10g}")


def _factor(value: float) -> str:
    return f"{value:.0f}" if value >= 9.5 else f"{value:.2g}"
