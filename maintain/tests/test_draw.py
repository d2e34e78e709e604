"""maintain/draw.py: the lot in silent_fixes.yaml is the one that its seed gives, and no kind of fault is left out."""

import draw


def test_the_file_has_the_lot_that_its_seed_gives():
    fixes = draw.read()
    drawn = {fix["pr"] for fix in fixes if fix["drawn"]}
    assert drawn == draw.draw(fixes)
    assert len(drawn) == draw.DRAWN
    assert {fix["needs"][0] for fix in fixes if fix["drawn"]} == {fix["needs"][0] for fix in fixes}


def test_other_fixes_give_another_lot():
    fixes = draw.read()
    assert draw.draw(fixes[1:]) != draw.draw(fixes)
