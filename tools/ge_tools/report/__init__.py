"""What commands print: tables, and figures for machines."""
