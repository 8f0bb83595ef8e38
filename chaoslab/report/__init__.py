"""Reports: what a run came to, written whole or not at all, and tables of several."""

from chaoslab.report.again import judge_again
from chaoslab.report.data import SCHEMA_VERSION, report_data
from chaoslab.report.summary import summary
from chaoslab.report.table import explain, terminal_table
from chaoslab.report.values import Report
from chaoslab.report.variants import Variant, variants_table, write_variants
from chaoslab.report.writing import keep_record, write_report

__all__ = [
    "SCHEMA_VERSION",
    "Report",
    "Variant",
    "explain",
    "judge_again",
    "keep_record",
    "report_data",
    "summary",
    "terminal_table",
    "variants_table",
    "write_report",
    "write_variants",
]
