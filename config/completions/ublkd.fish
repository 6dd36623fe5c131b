complete --keep-order --exclusive --command ublkd --arguments "(UBLKD_COMPLETE=fish ublkd -- (commandline --current-process --tokenize --cut-at-cursor) (commandline --current-token))"
