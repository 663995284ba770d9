"""The commands on mirrors, one module each (`mirrord.control.command`)."""
