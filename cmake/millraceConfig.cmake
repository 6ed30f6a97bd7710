# find_package(millrace) gives millrace::millrace: the library with its headers.
include(CMakeFindDependencyMacro)
find_dependency(OpenMP)
find_dependency(fmt)
find_dependency(yaml-cpp)
find_dependency(nlohmann_json)
find_dependency(ZLIB)
include("${CMAKE_CURRENT_LIST_DIR}/millraceTargets.cmake")
