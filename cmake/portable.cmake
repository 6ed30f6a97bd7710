# Copies the shared libraries that PROGRAM needs beside it, all but those of the C library, which every
# Linux has and which must fit its own loader.
file(GET_RUNTIME_DEPENDENCIES EXECUTABLES ${PROGRAM}
  RESOLVED_DEPENDENCIES_VAR libraries UNRESOLVED_DEPENDENCIES_VAR missing
  POST_EXCLUDE_REGEXES "/ld-linux" "/lib(c|m|dl|rt|pthread|resolv|util)\\.so")
if(missing)
  message(FATAL_ERROR "libraries that ${PROGRAM} needs are not here: ${missing}")
endif()
foreach(library ${libraries})
  file(COPY ${library} DESTINATION ${FOLDER} FOLLOW_SYMLINK_CHAIN)
endforeach()
