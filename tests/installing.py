"""Packages that offer something through entry points, as pip would put them there."""


def install(folder, monkeypatch, group, **entries):
    """A package whose entry points of this group are `entries`; underscores in names stand for hyphens."""
    info = folder / "toys-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toys\nVersion: 1.0\n")
    lines = [f"{name.replace('_', '-')} = {value}" for name, value in entries.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))
    monkeypatch.syspath_prepend(str(folder))
