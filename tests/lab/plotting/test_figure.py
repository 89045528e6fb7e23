from pathlib import Path

import polars as pl
from matplotlib.image import imread
from polars.testing import assert_frame_equal

from weightclip.lab.plotting.figure import Drawing, save
from weightclip.lab.plotting.panels import panels

DATA = pl.DataFrame({"method": ["sgd", "adam", "wc"], "mean": [0.123456789, float("nan"), 1.23456789e-9]})


def drawing() -> Drawing:
    with panels(1, 2, width=4.0, height=2.0) as (picture, ((left, _),)):
        left.plot([1, 2, 3])
    return Drawing(picture, DATA)


def test_a_figure_is_saved_as_pdf_png_and_csv(tmp_path: Path) -> None:
    paths = save(drawing(), tmp_path / "new", "name")
    assert [path.name for path in paths] == ["name.pdf", "name.png", "name.csv"]
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["name.csv", "name.pdf", "name.png"]
    assert paths[0].read_bytes().startswith(b"%PDF")
    assert imread(paths[1]).shape[:2] == (400, 800)
    assert_frame_equal(pl.read_csv(paths[2]), DATA, rel_tol=1e-5, abs_tol=0.0)


def test_the_same_results_give_the_same_files(tmp_path: Path) -> None:
    for first, second in zip(save(drawing(), tmp_path, "one"), save(drawing(), tmp_path, "two")):
        assert first.read_bytes() == second.read_bytes()


def test_pdfs_contain_no_type_3_fonts(tmp_path: Path) -> None:
    """Publishers do not accept Type 3 fonts, Matplotlib's default."""
    assert b"/Type3" not in save(drawing(), tmp_path, "name")[0].read_bytes()
