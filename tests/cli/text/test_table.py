"""Plain tables."""

from fractile.cli.text.table import Column, plain


def test_columns_are_as_wide_as_their_widest_cell_and_numbers_stand_at_the_right() -> None:
    columns = (Column("NAME"), Column("MiB", number=True), Column("X"))

    assert plain(columns, [("a", "8138", "y"), ("longer", "1", "z")]) == (
        "NAME     MiB  X\n"
        "a       8138  y\n"
        "longer     1  z\n"
    )  # fmt: skip


def test_an_empty_cell_is_a_dash_so_that_fields_can_be_counted() -> None:
    assert plain((Column("A"), Column("B")), [("", "")]) == "A  B\n-  -\n"


def test_a_table_without_rows_is_its_headings() -> None:
    assert plain((Column("A"), Column("B")), []) == "A  B\n"


def test_nothing_is_cut() -> None:
    name = "x" * 300

    assert name in plain((Column("A"),), [(name,)])


def test_a_line_stays_one_line_and_a_terminal_obeys_nothing_in_it() -> None:
    table = plain((Column("A"), Column("B")), [("\x1b[31mEVIL\x1b[0m", "x\nfake line")])
    assert table == "A              B\n?[31mEVIL?[0m  x?fake line\n"
