# SPDX-License-Identifier: Apache-2.0
# The house in the build: one static library a folder of src/, linked by the arrows of src/ARROWS.
# Beside x.cc, x_test.cc goes into the folder's test program; x_fuzz.cc is a fuzzer and x_bench.cc a program
# of its own.

set(CMAKE_CXX_STANDARD 23)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

# The compiler cache lies where the user's caches are and knows sources by their path within the tree: a fresh
# clone, a worktree and a mutant's copy compile what differs and nothing else. What a source includes it learns from
# the compiler (CCACHE_DEPEND), not from a preprocessor's run of its own; a precompiled header it knows by the sum
# beside it (cmake/precompiled.cmake), and no source asks for the time of its compilation.
find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 CCACHE_DEPEND=1
    CCACHE_PCH_EXTSUM=1 CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE})
endif()

add_compile_options(-Wall -Wextra -Wno-missing-field-initializers -Wshadow -Wnon-virtual-dtor -Werror)
# g++ 12 warns wrongly, where it inlines, about std::expected (a value that is not there is deleted or read) and
# about std::string's copies (that they overlap).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options(-Wno-free-nonheap-object -Wno-maybe-uninitialized -Wno-restrict)
endif()
if(CISTERN_SANITIZE)
  add_compile_options(-fsanitize=${CISTERN_SANITIZE} -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${CISTERN_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    add_compile_options(-fno-sanitize-recover=undefined)  # what is undefined fails its test
    add_link_options(-fuse-ld=lld)
  endif()
  if(CISTERN_SANITIZE MATCHES thread AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    add_compile_options(-Wno-tsan)  # it sees no fences: tests with threads use words that need none
  endif()
endif()
include(cmake/precompiled.cmake)

# All unit tests and all fuzzers, for the builds that want no more than them.
add_custom_target(unit_tests)
add_custom_target(fuzzers)

# cistern_arrows(FOLDER OUT): the folders that FOLDER may stand on, from src/ARROWS. An arrow to one
# header of a folder (wire/protocol.h) allows that include and links nothing.
function(cistern_arrows folder out)
  file(STRINGS ${PROJECT_SOURCE_DIR}/src/ARROWS lines REGEX "^${folder}:")
  string(REGEX REPLACE "^${folder}: *" "" lines "${lines}")
  separate_arguments(lines)
  list(FILTER lines EXCLUDE REGEX "/")
  set(${out} ${lines} PARENT_SCOPE)
endfunction()

# What a folder needs from outside; everything else is Cistern's own.
set(CISTERN_LIBS_base spdlog::spdlog Threads::Threads)
set(CISTERN_LIBS_io PkgConfig::LIBURING)
set(CISTERN_LIBS_catalog Boost::headers)
set(CISTERN_LIBS_node Boost::json)
set(CISTERN_LIBS_workload Boost::headers Boost::json)

# Tests compile in less than half the time with -O0, and in three fifths to five sixths with -O1; what is tested keeps
# its own.
function(cistern_test_options target)
  if(CISTERN_SANITIZE MATCHES address)
    target_compile_options(${target} PRIVATE -O0)
  else()
    target_compile_options(${target} PRIVATE -O1)
  endif()
  cistern_precompiled(${target} test)
endfunction()

# cistern_folder(FOLDER [PARENT LIBRARY...]): the folder of src/, or of PARENT, where LIBRARY... stand for its arrows.
function(cistern_folder folder)
  set(parent ${PROJECT_SOURCE_DIR}/src)
  if(ARGC GREATER 1)
    set(parent ${ARGV1})
  endif()
  set(dir ${parent}/${folder})
  file(GLOB all CONFIGURE_DEPENDS ${dir}/*.cc)
  set(tests ${all})
  set(fuzzers ${all})
  set(benches ${all})
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  list(FILTER fuzzers INCLUDE REGEX "_fuzz\\.cc$")
  list(FILTER benches INCLUDE REGEX "_bench\\.cc$")
  list(FILTER all EXCLUDE REGEX "_(test|fuzz|bench)\\.cc$")
  if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    list(FILTER all EXCLUDE REGEX "_(avx2|avx512)\\.cc$")
  endif()
  foreach(source IN LISTS all)
    if(source MATCHES "_avx512\\.cc$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS
        "-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mvpclmulqdq;-mpclmul;-msse4.2")
    elseif(source MATCHES "_avx2\\.cc$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "-mavx2;-mpclmul;-msse4.2")
    endif()
  endforeach()
  # A folder appears when it has something in it: an arrow to one that is not here yet links nothing.
  cistern_arrows(${folder} allowed)
  set(below "")
  foreach(lower IN LISTS allowed)
    if(TARGET cistern_${lower})
      list(APPEND below cistern_${lower})
    endif()
  endforeach()
  if(all)
    add_library(cistern_${folder} STATIC ${all})
    set(scope PUBLIC)
  else()
    add_library(cistern_${folder} INTERFACE)  # headers only
    set(scope INTERFACE)
  endif()
  target_include_directories(cistern_${folder} ${scope}
    $<BUILD_INTERFACE:${parent}> $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>)
  set(given ${ARGN})
  list(POP_FRONT given)
  target_link_libraries(cistern_${folder} ${scope} ${below} ${CISTERN_LIBS_${folder}} ${given})
  if(all)
    cistern_precompiled(cistern_${folder} standard)
  endif()
  # What -fsanitize=fuzzer-no-link instruments, in the folders that have a fuzzer and in what all stand on.
  if(CISTERN_FUZZ AND all AND (fuzzers OR folder MATCHES "^(base|record)$"))
    target_compile_options(cistern_${folder} PRIVATE
      -fsanitize-coverage=inline-8bit-counters,indirect-calls,trace-cmp,pc-table)
  endif()
  if(tests AND BUILD_TESTING)
    add_executable(${folder}_test ${tests})
    target_link_libraries(${folder}_test PRIVATE cistern_${folder} GTest::gmock GTest::gtest_main)
    set(environment TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tools/tsan_suppressions.txt)
    if(CISTERN_SANITIZE)  # where a random test takes ten times as long, one seed of it
      string(APPEND environment "\\;CISTERN_TEST_SEEDS=1")
    endif()
    gtest_discover_tests(${folder}_test DISCOVERY_MODE PRE_TEST TEST_PREFIX ${folder}/
      PROPERTIES LABELS unit TIMEOUT 1200 ENVIRONMENT ${environment})
    add_dependencies(unit_tests ${folder}_test)
    cistern_test_options(${folder}_test)
  endif()
  foreach(source IN LISTS benches)
    get_filename_component(name ${source} NAME_WE)
    add_executable(${name} ${source})
    if(CISTERN_SANITIZE)
      set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)
    endif()
    target_link_libraries(${name} PRIVATE cistern_${folder})
  endforeach()
  if(CISTERN_FUZZ)
    foreach(source IN LISTS fuzzers)
      get_filename_component(name ${source} NAME_WE)
      add_executable(${name} ${source})
      target_link_libraries(${name} PRIVATE cistern_${folder} -fsanitize=fuzzer)
      add_dependencies(fuzzers ${name})
      set(artifacts -artifact_prefix=${CMAKE_BINARY_DIR}/${name}-)
      add_test(NAME fuzz/${name} COMMAND ${name} -runs=5000 -seed=1 ${artifacts})
      set_tests_properties(fuzz/${name} PROPERTIES LABELS fuzz TIMEOUT 1200)
      add_test(NAME fuzz/${name}/long COMMAND ${name} -runs=20000 -seed=1 ${artifacts})
      set_tests_properties(fuzz/${name}/long PROPERTIES LABELS fuzz-long TIMEOUT 1200)
    endforeach()
  endif()
endfunction()

macro(cistern_house)
  file(STRINGS ${PROJECT_SOURCE_DIR}/src/ARROWS folders REGEX "^[a-z]+:")
  foreach(line IN LISTS folders)
    string(REGEX REPLACE ":.*" "" folder "${line}")
    file(GLOB here CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${folder}/*.cc ${PROJECT_SOURCE_DIR}/src/${folder}/*.h)
    if(here)
      cistern_folder(${folder})
    endif()
  endforeach()
  if(TARGET cistern_api)
    cistern_package()
  endif()
  foreach(room apps python tests bench lab tools)
    if(EXISTS ${PROJECT_SOURCE_DIR}/${room}/CMakeLists.txt)
      add_subdirectory(${room})
    endif()
  endforeach()
endmacro()
