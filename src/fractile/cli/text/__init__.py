"""The output of the commands: tables, trees and sentences made from the reports."""
