"""Write settings.md, the page of all settings: python docs/make_settings.py."""

from __future__ import annotations

from pathlib import Path

from fedprox.config.settings_list import settings_page

if __name__ == "__main__":
    Path(__file__).with_name("settings.md").write_text(settings_page(), encoding="utf-8")
