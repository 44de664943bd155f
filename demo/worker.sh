#!/usr/bin/env bash
# A worker in bash: claims tasks over HTTP and runs a command for each. It needs curl and jq, and no Python.
#
#   worker.sh QUEUE COMMAND [ARGUMENT]...
#
# The command gets the id of the task as its last argument (b64:… for an id that is no UTF-8 text, has a NUL, or begins
# with b64: itself), the payload as JSON on its standard input, however large or deep it is, and the lease, without the
# payload, as JSON in TIMEOUTQ_LEASE. If it ends with 0, the task is done. Else the task fails with the exit code and
# the last line that the command wrote to stderr, and is tried again later; if it ends with 100, the task is given up,
# and is not tried again.
#
# TIMEOUTQ_HTTP     the gateway, http://localhost:8080 by default
# TIMEOUTQ_TOKEN    a token that may `work` on the queue
# TIMEOUTQ_SECONDS  how long a lease runs, a whole number of seconds, 30 by default; it is extended while the command runs
# TIMEOUTQ_BATCH    how many tasks are claimed at once, 1 by default; they are worked on one after the other, and only the
#                   first of them ends early when it is cancelled
# TIMEOUTQ_BURST    1: end when the queue is drained; the token must also be allowed to `look`
#
# SIGTERM, SIGINT or SIGHUP: let the running command finish, give the other tasks back, and end. A second signal ends the
# command, too, and gives its task back. So does a first one that goes to the command as well (systemd, the end of a
# terminal) and ends it.
set -u
[ $# -ge 2 ] || { echo "usage: worker.sh QUEUE COMMAND [ARGUMENT]..." >&2; exit 2; }
queue=$1; shift
base=${TIMEOUTQ_HTTP:-http://localhost:8080}/v1/$queue
seconds=${TIMEOUTQ_SECONDS:-30} batch=${TIMEOUTQ_BATCH:-1} burst=${TIMEOUTQ_BURST:-0}
refuse() { echo "worker.sh: $*" >&2; exit 2; }
case $seconds in '' | 0* | *[!0-9]*) refuse "TIMEOUTQ_SECONDS must be a whole number of seconds, 1 or more, not '$seconds'" ;; esac
case $batch in '' | 0* | *[!0-9]*) refuse "TIMEOUTQ_BATCH must be a whole number of tasks, 1 or more, not '$batch'" ;; esac
case $burst in 0 | 1) ;; *) refuse "TIMEOUTQ_BURST must be 0 or 1, not '$burst'" ;; esac
type -P -- "$1" >/dev/null || refuse "there is no command '$1' that may be run"
name=$(uname -n | tr -c 'A-Za-z0-9._\n' - | cut -c 1-30)-$$-$RANDOM
scratch=$(mktemp -d) || exit 1
: >"$scratch/signals"
signals=0 acted_on=0 worker_pid='' claims=0 told_of=0

# A signal may go to all processes at once, and must not end the small programs that work for us. So there are two shells:
# the first one, whose pid the user knows, takes the signals; the second one works, and is deaf to them like all that it
# starts, except that the command hears TERM and HUP. The second one has no traps, either: a trap that runs while bash waits, or reads a $(…),
# may lose an exit code, or the rest of the line. It looks into $scratch/signals, which has a line for each signal.
on_signal() { signals=$((signals + 1)); echo >>"$scratch/signals"; }

# called again and again; does something once after each signal
act_on_signals() {
  [ "$signals" != "$acted_on" ] || return
  acted_on=$signals
  # a claim that waits is given up; the gateway sees this, and takes back at once what it has leased for this claim
  end curl -KILL
  [ "$signals" -lt 2 ] || end command -TERM
}

# end NAME SIGNAL [NUMBER]: end the process that the file of this name has, if it has one; with NUMBER, only if the process
# works on that lease
end() {
  local pid number
  read -r pid number 2>/dev/null <"$scratch/$1" || return 0
  [ "${3:-$number}" != "$number" ] || kill "$2" "$pid" 2>/dev/null
}

# whether this many signals have come; one, if the first shell is gone
has_come() {
  local lines signals
  mapfile lines <"$scratch/signals"
  signals=${#lines[@]}
  [ "$signals" -gt 0 ] || kill -0 $$ 2>/dev/null || signals=1
  [ "$signals" -ge "$1" ]
}

say() { echo "worker.sh: $*" >&2; }

# ask METHOD PATH BODY SECONDS [STOPPABLE]: one request, which a signal may end if it is STOPPABLE; its answer is in $scratch/answer-$BASHPID,
# its status in $code, and in $reached whether it may have reached the gateway
ask() {
  answer=$scratch/answer-$BASHPID
  local config="silent\nshow-error\nmax-time = $4\nheader = \"Content-Type: application/json\"\n"
  # in a file of its own, not in the arguments, which all users of this machine can see
  [ -z "${TIMEOUTQ_TOKEN:-}" ] || config+="header = \"Authorization: Bearer $TIMEOUTQ_TOKEN\"\n"
  local body=(); [ "$1" = GET ] || body=(--data-binary @-)
  : >"$answer" # what an earlier request was answered is no answer to this one
  if [ -n "${5:-}" ]; then
    # in a shell of its own, which says to nobody that curl was killed
    (
      send "$1" "$2" <<<"$3" &
      echo "$!" >"$scratch/curl"
      ! has_come 1 || end curl -KILL # a signal may have come just before there was anything to give up
      wait "$!"
    ) 2>/dev/null
  else
    (send "$1" "$2" <<<"$3")
  fi
  local status=$?
  case $status in 6 | 7) reached=0 ;; *) reached=1 ;; esac # curl found nobody who listens
  [ -z "${5:-}" ] || : >"$scratch/curl"
  code=$(cat "$answer.code")
  [ "$status" -eq 0 ] && [ -n "$code" ] || code=000 # the answer did not come, or not all of it
}

send() {
  exec curl -K <(printf "%b" "$config") -X "$1" -o "$answer" -w '%{http_code}' ${body[@]+"${body[@]}"} "$base/$2" \
    >"$answer.code" 2>"$answer.error"
}

# whether it helps to ask again: no answer came, or one that says that the gateway cannot answer now
is_passing() { case $code in 000 | 408 | 429 | 500 | 502 | 503 | 504) true ;; *) false ;; esac; }

told() { { [ -s "$answer" ] && jq -r '.detail // .title // "no reason"' "$answer" 2>/dev/null; } || cat "$answer.error"; }

# finish VERB BODY: end leases; ask until an answer comes, for as long as a lease runs, and when we are to go, for 20 seconds
# at most
finish() {
  local began=$SECONDS delay=0.1
  while true; do
    ask POST "$1" "$2" 10
    case $code in
      200) return 0 ;;
      409) say "$1: $(told)"; return 1 ;;
    esac
    if ! is_passing; then say "$1 is refused ($code): $(told)"; return 1; fi
    if [ "$SECONDS" -ge $((began + seconds)) ] || { has_come 1 && [ "$SECONDS" -ge $((began + 20)) ]; }; then
      say "$1: the gateway does not answer; the lease runs out by itself"
      return 1
    fi
    sleep "$delay"; delay=0.5
  done
}

# beat LEASES: extend the leases each third of their time, as long as this worker lives
beat() {
  local third never
  third=$(jq -n "$seconds / 3")
  exec {never}<> <(:)
  while kill -0 "$worker_pid" 2>/dev/null; do
    read -r -t "$third" -u "$never" || true
    ask POST extend "{\"leases\":$1,\"timeout\":$seconds}" 10
    if [ "$code" = 200 ] && jq -e '.answers[0] == "cancelled"' "$answer" >/dev/null; then
      : >"$scratch/cancelled"
      end command -TERM 0
    fi
  done
}

# is_drained [FIRST]: whether the queue is drained; ends the worker if it may not know
is_drained() {
  ask GET stats '' 10
  case $code in
    200) jq -e .drained "$answer" >/dev/null; return ;;
    404) [ -z "${1:-}" ] || return 1 ;; # at first, nothing may have been put yet
  esac
  is_passing && return 1
  say "TIMEOUTQ_BURST needs to see whether the queue is drained, which is refused ($code): $(told)"
  [ "$code" != 403 ] || say "use a token that may \`work\` and \`look\`, or leave TIMEOUTQ_BURST out"
  exit 1
}

# unpack LEASE NUMBER: the id of a task to $task, with a dot behind it, and the payload to $scratch/payload
unpack() {
  task=$(jq -j '.task | if type == "object" then "b64:" + .b64
    elif startswith("b64:") or (explode | index(0)) then "b64:" + @base64 else . end' <<<"$1" && printf .) &&
    jq -r --argjson number "$2" '.leases[$number].payload' "$scratch/claim" >"$scratch/payload"
} 2>"$scratch/stderr"

# claim N SECONDS AGE [STOPPABLE]: claim tasks and wait so long for them. Sent again with the same token and its age, a claim
# gives the leases that it took before
claim() {
  ask POST claim "{\"n\":$1,\"timeout\":$seconds,\"wait\":$2,\"token\":\"$name.$claims\",\"age\":$3,\"payloads\":\"text\"}" \
    $(($2 + 15)) "${4:-}"
}

# a claim was given up, and its answer may have been on its way to us: give back what it has brought; ask for it for 8 seconds
# at most, and four times if nobody listens
undo_claim() {
  local leases until=$((SECONDS + 8)) away=0
  while true; do
    claim 1 0 $((SECONDS - began + 1)) # 1: if the first claim took nothing, as little as there is
    away=$((away + 1 - reached))
    is_passing && [ "$SECONDS" -lt "$until" ] && [ "$away" -lt 4 ] || break
    sleep 0.3
  done
  [ "$code" = 200 ] && leases=$(jq -c '[.leases[] | del(.payload)]' "$answer" 2>/dev/null) || return
  [ "$leases" = '[]' ] || finish release "{\"leases\":$leases}"
}

# run LEASE NUMBER COMMAND...: become the command for $task
run() {
  local lease=$1 number=$2; shift 2
  trap - TERM HUP
  echo "$BASHPID $number" >"$scratch/command"
  # somebody may have wanted to end the command before its pid was known
  ! has_come 2 && { [ "$number" -gt 0 ] || [ ! -e "$scratch/cancelled" ]; } || exit 143
  TIMEOUTQ_LEASE=$lease exec "$@" "${task%.}"
}

# work LEASE NUMBER COMMAND...: run the command for a task, and tell how it ended
work() {
  local lease=$1 number=$2 task status last; shift 2
  if ! unpack "$lease" "$number"; then
    last=$(tail -n 1 "$scratch/stderr" | tail -c 1000)
    say "cannot unpack a task: $last"
    finish fail "$(jq -cn --argjson lease "$lease" --arg error "worker.sh cannot unpack the task: $last" \
      '{lease: $lease, error: $error}')"
    return
  fi
  (run "$lease" "$number" "$@") <"$scratch/payload" 2>"$scratch/stderr" &
  wait "$!"; status=$?
  : >"$scratch/command"
  cat "$scratch/stderr" >&2
  # a signal that ended the command may have been sent to us as well, and be on its way
  case $status in
    129 | 143) for _ in {1..10}; do ! has_come 1 && [ ! -e "$scratch/cancelled" ] || break; sleep 0.05; done ;;
  esac
  if [ "$status" -eq 0 ]; then
    finish ack "{\"leases\":[$lease]}"
  elif has_come 2 || { has_come 1 && [[ $status == @(129|143) ]]; }; then
    finish release "{\"leases\":[$lease]}"
  else
    last=$(LC_ALL=C grep -av '^[[:space:]]*$' "$scratch/stderr" | tail -n 1 | tail -c 1000)
    finish fail "$(jq -cn --argjson lease "$lease" --arg error "exit code $status${last:+: $last}" \
      --argjson give_up "$([ "$status" -eq 100 ] && echo true || echo false)" \
      '{lease: $lease, error: $error, give_up: $give_up}')"
  fi
}

# the second shell: claim and work until a signal comes, or until the first shell is gone
claim_and_work() {
  trap '' TERM INT HUP
  worker_pid=$BASHPID
  [ "$burst" != 1 ] || is_drained first || true # whoever may not look is told before there is work
  while ! has_come 1; do
    claims=$((claims + 1)) began=$SECONDS age=0 delay=0.1 sent=0
    wait=20; [ "$burst" != 1 ] || wait=1
    while true; do
      claim "$batch" "$wait" "$age" stoppable
      sent=$((sent | reached))
      # the payloads stay in the answer: they are too large for arguments and variables
      if [ "$code" = 200 ] && ! found=$(jq -c '.leases[] | del(.payload)' "$answer" 2>"$answer.error"); then
        code=000
        : >"$answer"
      fi
      [ "$code" != 200 ] && ! has_come 1 || break
      if ! is_passing; then say "claim is refused ($code): $(told)"; exit 1; fi
      [ "$told_of" = "$claims" ] || say "waits for the gateway ($code): $(told)"
      told_of=$claims age=$((SECONDS - began + 1))
      sleep "$delay"; delay=0.5
    done
    if [ "$code" != 200 ]; then
      [ "$sent" = 0 ] || undo_claim
      break
    fi
    if [ -z "$found" ]; then
      [ "$burst" != 1 ] || ! is_drained || exit 0
      continue
    fi
    mv "$answer" "$scratch/claim"
    mapfile -t leases <<<"$found"
    rm -f "$scratch/beat" "$scratch/cancelled"
    held="[$(IFS=,; echo "${leases[*]}")]"
    (beat "$held" & echo "$!" >"$scratch/beat"; wait "$!") >/dev/null 2>&1 &
    beats=$!
    for number in "${!leases[@]}"; do
      if has_come 1; then
        finish release "{\"leases\":[$(IFS=,; echo "${leases[*]:number}")]}"
        break
      fi
      work "${leases[number]}" "$number" "$@"
    done
    # until the pid of the beat is known
    while [ ! -s "$scratch/beat" ] && kill -0 "$beats" 2>/dev/null; do sleep 0.01; done
    end beat -KILL
    wait "$beats"
  done
}

trap on_signal TERM INT HUP
claim_and_work "$@" &
worker_pid=$!
exec {never}<> <(:)
# a signal that comes just before a `wait` is seen only at its end: so this shell never waits for long
while kill -0 "$worker_pid" 2>/dev/null; do
  read -r -t 0.2 -u "$never"
  act_on_signals
done
wait "$worker_pid"; status=$?
trap '' TERM INT HUP # a late signal must not end the program that cleans up
rm -rf "$scratch"
[ "$signals" -eq 0 ] || exit 0
exit "$status"
