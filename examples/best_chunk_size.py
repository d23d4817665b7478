"""The chunk size of least runtime: by theory for any GPU, and in rows that were measured."""

from pathlib import Path

import tflabench

ROWS = Path(__file__).parent.parent / "results" / "h100" / "quick"


def main() -> None:
    """Print the best chunk sizes of three GPUs by theory."""
    for gpu in ("A100", "H100", "B200"):
        sizes = {d: tflabench.optimal_chunk_size(gpu, d_qk=d // 2, d_hv=d) for d in (128, 256, 512)}
        print(f"{gpu}, by theory: " + ", ".join(f"L = {size} at d_hv {d}" for d, size in sizes.items()))
    print("H100 with 2 GiB:", tflabench.optimal_chunk_size("H100", memory_budget="2GiB"))

    df = tflabench.load(ROWS)  # rows that a sweep has stored; tflabench.sweep("chunk") measures yours
    swept = df[(df["status"] == "ok") & (df["seq_len"] == 8192) & (df["d_hv"] == 512)]
    for name, rows in swept.groupby("implementation"):
        best = rows.sort_values("ms_median").iloc[0]
        ms, gib = best["ms_median"], best["peak_bytes"] / 2**30
        print(f"H100, measured: {name} is fastest at L = {best['chunk_size']}: {ms:.3g} ms, {gib:.1f} GiB")


if __name__ == "__main__":
    main()
