#!/usr/bin/env bash
# Runs every finding, or those named, and prints one line for each: holds, changed, or could not be
# installed. Ends with 1 if any has changed.
set -uo pipefail
cd "$(dirname "$0")"
FINDINGS_FOLDER=$(mktemp -d)
export FINDINGS_FOLDER
trap 'rm -rf "$FINDINGS_FOLDER"' EXIT
[ $# -gt 0 ] || set -- $(ls ./*.sh | grep -vE '/(lib|run)\.sh$')

changed=0
for script; do
  begin=$SECONDS
  output=$(bash "$script" 2>&1)
  case $? in
    0) outcome=holds ;;
    77) outcome="could not be installed" ;;
    *) outcome=changed changed=1 ;;
  esac
  printf '%-52s %-23s %4d s\n' "$(basename "$script" .sh)" "$outcome" $((SECONDS - begin))
  [ "$outcome" = holds ] || printf '%s\n' "$output" | tail -n 12 | sed 's/^/    /'
done
exit $changed
