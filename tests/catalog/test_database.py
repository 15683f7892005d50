"""The structure of a catalog: made at once, or by the migrations; the same on both databases."""

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from command_line import run_fresh

from agentic_retriever.catalog.address import Address
from agentic_retriever.catalog.database import _MIGRATIONS, Database
from agentic_retriever.catalog.tables import METADATA, REVISION, VERSION_TABLE


@pytest.fixture
def database(place, closed_at_end):
    return closed_at_end(Database(Address.of(place)))


def migrate(connection, revision):
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(_MIGRATIONS))
    command.upgrade(config, revision)


def differences(connection):
    options = {"version_table": VERSION_TABLE, "compare_type": True}
    return compare_metadata(MigrationContext.configure(connection, opts=options), METADATA)


def test_migrations_give_what_the_tables_say(database):
    with database.engine().connect() as connection:
        migrate(connection, "head")
        assert differences(connection) == []


def test_a_catalog_of_an_older_structure_is_brought_up_to_date(database):
    with database.engine().connect() as connection:
        migrate(connection, "0001")
        assert differences(connection)
        connection.commit()
    with database.reading() as connection:
        assert differences(connection) == []


def test_a_new_catalog_has_the_newest_structure_and_opens_without_alembic(tmp_path):
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    assert ScriptDirectory.from_config(config).get_current_head() == REVISION
    code = (
        "import sys\nfrom pathlib import Path\nfrom agentic_retriever.catalog.address import Address\n"
        "from agentic_retriever.catalog.database import Database\n"
        "for _ in range(2):\n    with Database(Address.of(Path(sys.argv[1]))).writing():\n        pass\n"
        "print('alembic' in sys.modules)\n"
    )
    done = run_fresh(code, tmp_path / "c", check=True)
    assert done.stdout.strip() == "False"
