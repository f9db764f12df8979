"""What the commands print: tables, trees and sentences made from the reports."""
