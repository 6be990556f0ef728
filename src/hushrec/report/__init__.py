"""Reports about finished runs: tables, plots and one HTML page, made from the records of the runs alone."""

from hushrec.report.page import Section, write_report
from hushrec.report.studies import Study, read_studies
from hushrec.report.tables import study_rows

__all__ = ["Section", "Study", "read_studies", "study_rows", "write_report"]
