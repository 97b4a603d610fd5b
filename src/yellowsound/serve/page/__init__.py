"""The web page: server-rendered HTML over the same service as the API, kept alive by one event stream a tab.

``router`` is everything the application includes. The page computes nothing that the API could not also say.
"""

from __future__ import annotations

from fastapi import APIRouter

from yellowsound.serve.page import actions, key, live, pages, static

__all__ = ["router"]

router = APIRouter(include_in_schema=False)
for _part in (static, key, live, actions, pages):
    router.include_router(_part.router)
