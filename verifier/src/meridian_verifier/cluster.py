# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes API as seen by a pod with a service account: a few requests do not need a client library."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
SECONDS: Final = 30.0
"""Time limit for one request."""
NOT_FOUND: Final = 404


class ClusterError(Exception):
    """This is not a pod, or the API server refused. The message names the request and the reason."""


class Cluster:
    """The API server, with the rights of the pod's service account.

    :raises ClusterError: this process does not run in a pod, or the pod has no service account.
    """

    def __init__(self, account: Path = ACCOUNT) -> None:
        try:
            host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
            self._token = (account / "token").read_text(encoding="utf-8").strip()
            self.namespace = (account / "namespace").read_text(encoding="utf-8").strip()
            trust = ssl.create_default_context(cafile=str(account / "ca.crt"))
        except (KeyError, OSError) as error:
            raise ClusterError(f"this works only in a pod with a service account: {error}") from error
        self._url = f"https://{f'[{host}]' if ':' in host else host}:{port}"
        https = urllib.request.HTTPSHandler(context=trust)
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), https)

    def get(self, path: str) -> Any:
        """The object, or None if it does not exist. :raises ClusterError: no answer, or a refusal."""
        return self._ask("GET", path)

    def apply(self, path: str, body: Mapping[str, Any]) -> None:
        """Create or change an object by server-side apply. :raises ClusterError: no answer, or a refusal."""
        asked = f"{path}?fieldManager=meridian-verifier&force=true"
        if self._ask("PATCH", asked, json.dumps(body).encode(), "application/apply-patch+yaml") is None:
            raise ClusterError(f"PATCH {path}: there is no such namespace")

    def delete(self, path: str) -> bool:
        """False: there was no such object. :raises ClusterError: no answer, or a refusal."""
        return self._ask("DELETE", path) is not None

    def _ask(self, method: str, path: str, body: bytes | None = None, content: str = "") -> Any:
        headers = {"Authorization": f"Bearer {self._token}"}
        if body is not None:
            headers["Content-Type"] = content
        request = urllib.request.Request(self._url + path, data=body, headers=headers, method=method)
        try:
            with self._opener.open(request, timeout=SECONDS) as response:
                return json.loads(response.read())
        except urllib.error.HTTPError as error:
            with error:
                if error.code == NOT_FOUND:
                    return None
                reason = error.read(1000).decode(errors="replace")
            raise ClusterError(f"{method} {path}: HTTP {error.code}: {reason}") from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ClusterError(f"{method} {path}: {error}") from error
