"""A training script as one is written: six steps, a save at each second, a line when it is saved.

python trainer.py DIR [plain|safe]
"""

import os
import sys
from pathlib import Path


def main() -> None:
    root, how = Path(sys.argv[1]), sys.argv[2]
    for step in range(1, 7):
        if step % 2 == 0:
            draft = root / "draft"
            with draft.open("wb") as file:
                file.write(bytes([step]) * 10_000)
                file.flush()
                if how == "safe":
                    os.fsync(file.fileno())
            draft.replace(root / "last")
            if how == "safe":
                fd = os.open(root, os.O_RDONLY)
                os.fsync(fd)
                os.close(fd)
            print(f"saved step {step}")


def restore(root: Path) -> bytes | None:
    last = root / "last"
    return last.read_bytes() if last.exists() else None


if __name__ == "__main__":
    main()
