"""llama.cpp's own HTTP server, from the package xllamacpp.

    python bench/llama_cpp_server.py MODEL PORT SLOTS CONTEXT THREADS
    python bench/llama_cpp_server.py --system      # what the package was compiled for

All slots share one cache of SLOTS * CONTEXT cells.
"""

from __future__ import annotations

import sys
import threading

import xllamacpp


def main() -> None:
    if sys.argv[1:] == ["--system"]:
        print(xllamacpp.get_system_info())
        return
    model, *numbers = sys.argv[1:]
    port, slots, context, threads = map(int, numbers)
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.port = port
    params.n_parallel = slots
    params.n_ctx = slots * context
    params.kv_unified = True
    params.fit_params = False  # it would reduce the context if it considers memory short
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.n_threads_http = slots + 4  # each stream occupies one; llama-server has as many
    params.verbosity = 1
    server = xllamacpp.Server(params)
    print(f"Listening on {server.listening_address}", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
