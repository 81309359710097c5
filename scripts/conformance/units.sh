#!/usr/bin/env bash
# Takes the place of systemd-run, systemctl, sudo and journalctl for Kubernetes' tests of nodes, which run kubelet as a unit of systemd, on a
# machine where systemd does not run. A unit is a process; a directory below $CONFORMANCE_UNITS has its command, log and process ID. The name
# under which the script is called decides what it does. It knows only what the tests call.
set -euo pipefail
units=${CONFORMANCE_UNITS:?}

running() {
  local id state
  id=$(cat "$units/$1/pid" 2>/dev/null) && state=$(sed 's/.*) //' "/proc/$id/stat" 2>/dev/null) && [ "${state%% *}" != Z ]
}

start() {
  local command
  mapfile -d '' -t command <"$units/$1/command"
  setsid "${command[@]}" >>"$(cat "$units/$1/log")" 2>&1 </dev/null &
  echo $! >"$units/$1/pid"
}

stop() {
  running "$1" || return 0
  kill "$(cat "$units/$1/pid")" 2>/dev/null || true
  for _ in $(seq 900); do
    running "$1" || return 0
    sleep 0.1
  done
  kill -KILL "$(cat "$units/$1/pid")"
}

case ${0##*/} in
sudo) exec "$@" ;;
journalctl) ;;
systemd-run)
  unit='' log=/dev/null
  while [ $# -gt 0 ]; do
    case $1 in
    --version) echo 'systemd 252 (252)' && exit ;;
    --unit=*) unit=${1#--unit=} ;;
    -p)
      case $2 in StandardError=*) log=${2#StandardError=*:} ;; esac
      shift
      ;;
    -*) ;;
    *) break ;;
    esac
    shift
  done
  mkdir -p "$units/$unit"
  echo "$log" >"$units/$unit/log"
  for word; do # the tests escape them for systemd
    word=${word//%%/%}
    printf '%s\0' "${word//\$\$/\$}"
  done >"$units/$unit/command"
  start "$unit"
  ;;
systemctl)
  verb=$1
  shift
  case $verb in
  list-units)
    for unit in "$units"/*; do
      unit=${unit##*/}
      if running "$unit"; then
        echo "$unit loaded active running a process"
      elif [[ "$*" != *--state=running* ]]; then
        echo "$unit loaded active exited a process"
      fi
    done
    ;;
  kill | stop | restart | is-active | reset-failed)
    unit=${1%.service}.service
    case $verb in
    kill) running "$unit" && kill "$(cat "$units/$unit/pid")" ;;
    stop) stop "$unit" ;;
    restart) stop "$unit" && start "$unit" ;;
    is-active) running "$unit" ;;
    esac
    ;;
  *) echo "systemctl $verb: systemd does not run here" >&2 && exit 1 ;;
  esac
  ;;
esac
