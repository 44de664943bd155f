#!/usr/bin/env bash
# Protego 0.7.0, robotspy 0.13.0.
#
# A group of a robots.txt may begin with several lines "User-agent". Here a line stands between two of them that RFC 9309
# does not define: Content-Signal, Noindex, Crawl-delay. Such a line must not interfere with the others (2.2.4), so one
# would guess that shopbot and newsbot form one group, and that neither may fetch /cart; robotspy answers so. Protego,
# which Scrapy and crawlee use, lets Sitemap pass, but ends the group at each other line. The group of shopbot is then
# empty, so shopbot may fetch everything, even what the group for * forbids.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check protego==0.7.0 robotspy==0.13.0
"$work/venv/bin/python" - <<'PY'
from protego import Protego
from robots import RobotsParser

seen = {}
for line in ["Sitemap: https://shop.example/sitemap.xml", "Content-Signal: ai-train=no", "Noindex: /old", "Crawl-delay: 5"]:
    text = f"User-agent: shopbot\n{line}\nUser-agent: newsbot\nDisallow: /cart\n\nUser-agent: *\nDisallow: /\n"
    url = "https://shop.example/cart"
    protego = Protego.parse(text).can_fetch(url, "shopbot")
    robotspy = RobotsParser.from_string(text).can_fetch("shopbot", url)
    name = line.partition(":")[0]
    print(f"{name} between the two: may shopbot fetch /cart? Protego: {protego}, robotspy: {robotspy}")
    seen[name] = (protego, robotspy)
others = dict.fromkeys(["Content-Signal", "Noindex", "Crawl-delay"], (True, False))
assert seen == {"Sitemap": (False, False), **others}
PY
# seen:
#   Sitemap between the two: may shopbot fetch /cart? Protego: False, robotspy: False
#   Content-Signal between the two: may shopbot fetch /cart? Protego: True, robotspy: False
#   Noindex between the two: may shopbot fetch /cart? Protego: True, robotspy: False
#   Crawl-delay between the two: may shopbot fetch /cart? Protego: True, robotspy: False
