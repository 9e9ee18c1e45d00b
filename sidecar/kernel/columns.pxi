# Columns to records.


def records_from_columns(columns, count):
    raise NotImplementedError
