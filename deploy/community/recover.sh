# Makes this machine the organiser of a run whose organiser is lost for good; the service `successor` runs it.
# Needs the run's recovery key in /backup/keys (or in /keys), and LINK or the address in /shared/relay.
if [ -n "${LINK:-}" ]; then set -- "$LINK"; else set -- --peers "$(cat /shared/relay)"; fi

if ! [ -e /data/handed-over ]; then
  cp /backup/keys/*.recovery /keys/
  sfnode join "$@" &
  node=$!
  # Refused until the node has all decisions that its neighbours have. One that was interrupted goes on with the
  # succession that it has: two of one term would void each other.
  until [ -e /data/succession.json ] || sfnode organise hand-over --out /data/succession.json; do
    kill -0 "$node" # ends this script if the node has ended
    sleep 5
  done
  until sfnode status > /dev/null; do
    kill -0 "$node"
    sleep 1
  done
  sfnode organise sign /data/succession.json
  sfnode organise hand-over --submit /data/succession.json
  touch /data/handed-over
  sfnode leave
  wait "$node"
  rm /keys/*.recovery # it has done its work; the backup has it
fi
exec sfnode join "$@" --organise --set organise.alone=true
