# Sourced by the Makefile: points JAVA_HOME at the Java that scripts/setup.sh chose, unless the user's own already does.
# shellcheck shell=sh
if [ -s .venv/.java_home ]; then
    JAVA_HOME=$(cat .venv/.java_home)
    export JAVA_HOME
fi
