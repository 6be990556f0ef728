"""Attributes of the people in a named set (gender, age and occupation), read from a file beside the ratings."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hushrec.data import named
from hushrec.data.ratings import IntArray
from hushrec.data.tables import read_table

# The file beside the ratings, and its columns of id, gender, age and occupation.
PEOPLE_FILES: dict[str, tuple[str, tuple[int, int, int, int]]] = {
    "ml-100k": ("u.user", (0, 2, 1, 3)),
    "ml-1m": ("users.dat", (0, 1, 2, 3)),
}


def load_people(name: str, user_ids: Sequence[str], data_dir: str | Path | None = None) -> dict[str, IntArray] | None:
    """Return the class of every user for each attribute, as whole numbers in the order of `user_ids`.

    The result has the keys gender, age and occupation. Age has two classes, divided at the median. The result is None
    if the set has no file of people.
    """
    if name not in PEOPLE_FILES:
        return None
    file, columns = PEOPLE_FILES[name]
    folder = named.find(name, data_dir).ratings.parent
    path = next((path for path in (folder / file, folder / f"{file}.gz") if path.is_file()), None)
    if path is None:
        return None
    frame = read_table(path).frame
    ids, genders, ages, occupations = (frame[:, column].to_list() for column in columns)
    row_of = {str(person): row for row, person in enumerate(ids)}
    rows = [row_of[person] for person in user_ids]
    age = np.array([int(ages[row]) for row in rows])
    return {
        "gender": np.array([genders[row] == "F" for row in rows]).astype(np.int64),
        "age": (age > np.median(age)).astype(np.int64),
        "occupation": np.unique([occupations[row] for row in rows], return_inverse=True)[1].astype(np.int64),
    }
