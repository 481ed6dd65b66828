"""What commands print: tables, figures for machines, and plots."""
