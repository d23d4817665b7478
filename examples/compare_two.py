"""Measure two implementations in turns, and divide their times: only those of one comparison may be divided."""

import tempfile

import torch

import tflabench

GPU = torch.cuda.is_available()
OURS, OTHER = ("tfla_sig_xl", "sdpa") if GPU else ("reference_sig", "sdpa")


def main() -> None:
    """Time two implementations in one comparison, and print the ratio."""
    with tempfile.TemporaryDirectory() as out:
        df = tflabench.sweep(
            impl=[OURS, OTHER], out=out, batch=2, heads=4, head_dim=64, chunk_size=None, pass_="fw",
            seq_len=[1024, 4096] if GPU else [64, 128], dtype="bfloat16" if GPU else "float32",
        )  # fmt: skip
    measured = df[(df["status"] == "ok") & df["closed"]]
    ms = measured.pivot(index=["comparison_id", "seq_len"], columns="implementation", values="ms_median")
    for T, times in ms.droplevel("comparison_id").iterrows():
        ratio = times[OTHER] / times[OURS]
        print(f"T = {T}: {OURS} {times[OURS]:.3g} ms, {OTHER} {times[OTHER]:.3g} ms, {OTHER} / {OURS} = {ratio:.2f}")
    tflabench.plot(df, axis="seq_len").savefig("compare_two.png")
    print("wrote compare_two.png")


if __name__ == "__main__":
    main()
