"""Choose the cases of a parametrised test that run each time."""


def sampled(cases, n):
    """Return the places of about one in n cases, among them each value that several cases share.

    A case maps the names of parameters to values. Those cases are chosen in which the positions of
    the values add up to a multiple of n, as in a Latin square, and for each value that none of
    these has, the first case that has it. Of a test with one parameter these are every nth case.
    """
    columns = []
    for name in cases[0]:
        values = [repr(case[name]) for case in cases]  # as arrays cannot be hashed
        positions = {value: i for i, value in enumerate(dict.fromkeys(values))}
        columns.append([positions[value] for value in values])
    # Parameters that always change together count once.
    rows = zip(*set(map(tuple, columns)), strict=True)
    chosen = {place for place, row in enumerate(rows) if sum(row) % n == 0}
    missed = set()
    for column in columns:
        values = set(column)
        if len(values) < len(cases):
            missed.update(column.index(value) for value in values - {column[i] for i in chosen})
    return chosen | missed
