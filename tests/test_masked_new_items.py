"""Items that join the catalogue of a masked run: predicted from their attributes, without a round."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from service_kit import OPEN_SOCKETS, held_port, live_server
from test_masked_run import N_ITEMS as FILMS
from test_masked_run import small_problem
from test_masked_service import N_ITEMS, catalogue, masked_settings, new_people, take_part

from hushrec.engines.cpu.masked import CpuMaskedEngine
from hushrec.errors import ParameterError
from hushrec.models.gaussian_process import Ratings
from hushrec.models.item_columns import item_columns
from hushrec.protocols.masked.gp.learning import GpLearning
from hushrec.service.setup import Items

pytestmark = OPEN_SOCKETS


def longer_catalogue(*, added: int = 2, swapped: bool = False) -> Items:
    """The catalogue with so many films more, of both kinds in turn; or with other kinds for those that were there."""
    count = N_ITEMS + added
    kinds = np.arange(count) % 2 == 0
    kinds[:N_ITEMS:3] ^= swapped
    titles = [f"Film {number}" for number in range(count)]
    columns = item_columns(count, titles, pl.DataFrame({"kind=even": kinds}))
    return Items.of([f"item-{n}" for n in range(count)], titles, {"columns": columns})


def test_a_new_item_is_liked_as_those_of_its_kind() -> None:
    """A run without noise; the table grows by an even and an odd film, and every person likes the one of their kind."""
    problem = small_problem(epsilon=np.inf)
    engine = CpuMaskedEngine(problem)
    for _ in range(problem.terms.max_rounds):
        engine.run_round()
    even = problem.model.columns.taste[[0, 1]]
    titles = [f"Film {number}" for number in range(FILMS + 2)]
    longer = item_columns(FILMS + 2, titles, pl.DataFrame({"kind=even": np.arange(FILMS + 2) % 2 == 0}))
    columns = type(longer)(np.concatenate([problem.model.columns.taste, even]), np.zeros((FILMS + 2, 0)), longer.titles)
    learning = GpLearning(columns)
    table = learning.with_new_items(vars(engine.learner.table()))
    own = Ratings(problem.starts, problem.items, problem.values)
    predictor = learning.predictor(learning.table_from(table), own, final=True)
    people = np.arange(problem.n_users)
    for place in (0, 1):
        found = predictor.predict(people, np.full(len(people), FILMS + place))
        assert found[people % 2 == place].mean() > found[people % 2 != place].mean() + 1
    known = predictor.predict(people, np.zeros(len(people), dtype=int))
    plain = engine.predictor().predict(people, np.zeros(len(people), dtype=int))
    np.testing.assert_allclose(known, plain, atol=0.2)


def test_a_finished_run_gets_new_items_and_devices_rank_them(tmp_path: Path) -> None:
    """The operator restarts with a longer file: devices fetch what is new and predict for it; no round, no cost."""
    settings = masked_settings(4, terms={"survivors": 1.0})
    with held_port() as port, ExitStack() as stack:
        devices = new_people(tmp_path, 4)
        for device in devices:
            stack.callback(device.close)
        with live_server(tmp_path, settings, items=catalogue(), port=port) as live:
            for device in devices:
                device.join(live.url)
            take_part(devices, lambda: False)
            spent = [device.budget()["spent"] for device in devices]
            assert devices[0].predict().shape == (N_ITEMS,)
        with live_server(tmp_path, settings, items=longer_catalogue(), port=port) as live:
            assert live.rounds.is_over
            assert [device.step() for device in devices] == ["run over"] * 4
            for device in devices:
                assert device.predict().shape == (N_ITEMS + 2,)
                assert {found.item for found in device.recommend(N_ITEMS)} >= {"item-24", "item-25"}
            assert [device.budget()["spent"] for device in devices] == spent
            devices[0].add_ratings({"item-24": 5.0})
            assert "item-24" not in {found.item for found in devices[0].recommend(N_ITEMS)}
        with (
            pytest.raises(ParameterError, match="attributes"),
            live_server(tmp_path, settings, items=longer_catalogue(added=4, swapped=True), port=port),
        ):
            pass


def test_a_run_that_goes_on_keeps_its_terms_when_items_join(tmp_path: Path) -> None:
    """Between two rounds: the next round has the blocks that devices accepted, and whoever joins now has all items."""
    settings = masked_settings(3, terms={"survivors": 1.0}, rounds={"automatic": False})
    with held_port() as port, ExitStack() as stack:
        devices = new_people(tmp_path, 3)
        for device in devices:
            stack.callback(device.close)
        with live_server(tmp_path, settings, items=catalogue(), port=port) as live:
            for device in devices:
                device.join(live.url)
            assert live.admin("POST", "/v1/admin/start").status_code == 200
            take_part(devices, lambda: not live.rounds.is_open)
            token = live.admin_token
        with live_server(tmp_path, settings, items=longer_catalogue(), port=port) as restarted:
            live = replace(restarted, admin_token=token)
            assert live.admin("POST", "/v1/admin/start").status_code == 200
            take_part(devices, lambda: not live.rounds.is_open)
            assert live.rounds.server.side.learner.round_number == 2
            assert live.rounds.offer.terms.n_items == N_ITEMS
