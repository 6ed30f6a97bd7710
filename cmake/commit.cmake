# Writes OUTPUT, which names the commit of the sources, of INPUT.
execute_process(COMMAND git rev-parse --short HEAD WORKING_DIRECTORY ${SOURCE} OUTPUT_VARIABLE COMMIT
  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
configure_file(${INPUT} ${OUTPUT} @ONLY)
