"""ETH/UCY, one scene left out at a time: how far predicted paths are from those that were walked.

  bench/run pedestrians FOLDER [KEY=VALUE ...]     FOLDER: the eight tables of the two data sets

Trains configs/trajectory.yaml on all other scenes, a tenth of whose paths choose the checkpoint, and evaluates it on the one that
was left out: 8 states (3.2 s) are read, 12 (4.8 s) predicted, every window of 20 states counts. In metres: the mean distance
over all predicted states (ADE) and that of the last (FDE). `straight`: going on as in the last step.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
MILLRACE = pathlib.Path(os.environ.get("MILLRACE", ROOT / "build" / "millrace"))
SCENES = {  # left out: its files
    "ETH": ["biwi_eth"],
    "HOTEL": ["biwi_hotel"],
    "UNIV": ["students001", "students003"],
    "ZARA1": ["crowds_zara01"],
    "ZARA2": ["crowds_zara02"],
}
ALSO_TRAINED_ON = ["crowds_zara03", "uni_examples"]


def millrace(folder, *words):
    done = subprocess.run([str(MILLRACE), *words], cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"millrace {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def errors(folder, run, held_out):
    metrics = json.loads(millrace(folder, "eval", run, f"data.validation={held_out}", "--json"))
    return metrics["eval/ade"], metrics["eval/fde"]


def main():
    if len(sys.argv) < 2 or not pathlib.Path(sys.argv[1]).is_dir():
        sys.exit(__doc__)
    data, changes = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:]
    files = sorted({f for scene in SCENES.values() for f in scene} | set(ALSO_TRAINED_ON))
    config = str(ROOT / "configs" / "trajectory.yaml")
    table = {}
    print(f"{'left out':10} {'ADE':>6} {'FDE':>6}   {'straight':>6}", flush=True)
    with tempfile.TemporaryDirectory(prefix="millrace-pedestrians-") as folder:
        for scene, held_out in SCENES.items():
            train = ",".join(f"{f}.txt" for f in files if f not in held_out)
            test = "[" + ",".join(f"{f}.txt" for f in held_out) + "]"
            words = ["train", config, f"data.folder={data}", f"data.train=[{train}]", *changes]
            # No update that changes anything: a model that has learnt nothing goes straight on.
            millrace(folder, *words, "run_name=straight", "training.max_steps=1", "training.learning_rate=1e-30", "training.ema_decay=0",
                     "model.init_std=1e-9")
            millrace(folder, *words, f"run_name={scene}")
            table[scene] = errors(folder, scene, test) + errors(folder, "straight", test)
            print("{:10} {:6.3f} {:6.3f}   {:6.3f} {:6.3f}".format(scene, *table[scene]), flush=True)
    mean = [sum(column) / len(table) for column in zip(*table.values())]
    print("{:10} {:6.3f} {:6.3f}   {:6.3f} {:6.3f}".format("average", *mean))


if __name__ == "__main__":
    main()
