"""DescribeClientQuotas and AlterClientQuotas."""

from alpacamq.api.kafka.call import Backend, Call
from alpacamq.api.kafka.errors import code_of, text_of
from alpacamq.cluster.commands import MAX_SECURITY_CHANGES
from alpacamq.model.errors import AlpacaError, InvalidRequest
from alpacamq.protocol.messages import quotas as wire
from alpacamq.security.acls import Operation
from alpacamq.security.quotas import (
    ClientQuota,
    EntityPart,
    FilterPart,
    MatchType,
    QuotaEdit,
    QuotaFilter,
    QuotaOp,
)

# More than there are types and keys. A request is refused before all of a long list is looked at.
MAX_PARTS = 16


async def describe_client_quotas(
    backend: Backend, request: wire.DescribeClientQuotasRequest, call: Call
) -> wire.DescribeClientQuotasResponse:
    try:
        backend.broker.access.check_cluster(call.caller, Operation.DESCRIBE_CONFIGS)
        if len(request.components) > MAX_PARTS:
            raise InvalidRequest(f"a filter has at most {MAX_PARTS} components")
        wanted = QuotaFilter([_filter_part(each) for each in request.components], is_strict=request.strict)
    except AlpacaError as error:
        return wire.DescribeClientQuotasResponse(
            error_code=code_of(error), error_message=text_of(error), entries=None
        )
    entries = []
    for quota in backend.broker.quotas.all():
        await call.pause()
        if wanted.matches(quota):
            entries.append(_entry(quota))
    return wire.DescribeClientQuotasResponse(entries=entries)


def _filter_part(component: wire.ComponentData) -> FilterPart:
    try:
        match = MatchType(component.match_type)
    except ValueError:
        raise InvalidRequest(f"unknown match type {component.match_type}") from None
    return FilterPart(component.entity_type, match, component.match)


def _entry(quota: ClientQuota) -> wire.EntryData:
    return wire.EntryData(
        entity=[wire.EntityData(entity_type=type_, entity_name=name) for type_, name in quota.entity],
        values=[wire.ValueData(key=key, value=value) for key, value in quota.values.items()],
    )


async def alter_client_quotas(
    backend: Backend, request: wire.AlterClientQuotasRequest, call: Call
) -> wire.AlterClientQuotasResponse:
    try:
        backend.broker.access.check_cluster(call.caller, Operation.ALTER_CONFIGS)
        if len(request.entries) > MAX_SECURITY_CHANGES:
            raise InvalidRequest(
                f"at most {MAX_SECURITY_CHANGES} entities at once, not {len(request.entries)}"
            )
    except AlpacaError as error:
        results = []
        for entry in request.entries:
            await call.pause()
            results.append(_result(entry, error))
        return wire.AlterClientQuotasResponse(entries=results)
    edits: list[QuotaEdit] = []
    errors: list[AlpacaError | None] = []
    for entry in request.entries:
        await call.pause()
        try:
            edits.append(_edit(entry))
            errors.append(None)
        except AlpacaError as error:
            errors.append(error)
    if edits:
        try:
            failures = (await backend.broker.quotas.alter(edits, dry_run=request.validate_only)).failures
            altered = [None if each is None else each.to_error() for each in failures]
        except AlpacaError as error:
            altered = [error] * len(edits)
        outcomes = iter(altered)
        errors = [next(outcomes) if error is None else error for error in errors]
    results = []
    for entry, refused in zip(request.entries, errors, strict=True):
        await call.pause()
        results.append(_result(entry, refused))
    return wire.AlterClientQuotasResponse(entries=results)


def _edit(entry: wire.AlterEntryData) -> QuotaEdit:
    if len(entry.entity) > MAX_PARTS or len(entry.ops) > MAX_PARTS:
        raise InvalidRequest(f"an entry has at most {MAX_PARTS} entity types and {MAX_PARTS} quotas")
    return QuotaEdit(
        tuple(EntityPart(each.entity_type, each.entity_name) for each in entry.entity),
        tuple(QuotaOp(each.key, None if each.remove else each.value) for each in entry.ops),
    )


def _result(entry: wire.AlterEntryData, error: AlpacaError | None) -> wire.AlterResponseEntryData:
    if error is None:
        return wire.AlterResponseEntryData(entity=entry.entity)
    return wire.AlterResponseEntryData(
        error_code=code_of(error), error_message=text_of(error), entity=entry.entity
    )
