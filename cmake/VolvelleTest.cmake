# Test helpers, one job each.

# volvelle_add_test(NAME file.cpp LABEL unit LINKS modules...): one GoogleTest program, one ctest.
function(volvelle_add_test name source)
  cmake_parse_arguments(arg "" "LABEL;TIMEOUT" "LINKS" ${ARGN})
  add_executable(${name} ${source})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${name} PRIVATE ${arg_LINKS} GTest::gtest GTest::gtest_main)
  volvelle_compile_settings(${name})
  add_test(NAME ${arg_LABEL}.${name} COMMAND ${name})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 600)
  endif()
  set_tests_properties(${arg_LABEL}.${name} PROPERTIES LABELS ${arg_LABEL} TIMEOUT ${arg_TIMEOUT})
endfunction()

# Builds a source twice: as it is it must compile, with -DVOLVELLE_BAD_LINE it must not.
# So the test can not rot: a file that no longer compiles for another reason fails the first half.
function(volvelle_add_compile_failure_test name source)
  set(command ${CMAKE_CXX_COMPILER} -std=c++20 -fsyntax-only -I${PROJECT_SOURCE_DIR}/include
              ${CMAKE_CURRENT_SOURCE_DIR}/${source})
  add_test(NAME compile_fail.${name}.control COMMAND ${command})
  add_test(NAME compile_fail.${name} COMMAND ${command} -DVOLVELLE_BAD_LINE)
  set_tests_properties(compile_fail.${name} PROPERTIES WILL_FAIL TRUE)
  set_tests_properties(compile_fail.${name} compile_fail.${name}.control PROPERTIES LABELS compile_fail)
endfunction()

# A test that is a Python script of tools/.
function(volvelle_add_script_test name label)
  add_test(NAME ${label}.${name} COMMAND ${Python3_EXECUTABLE} ${ARGN}
           WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(${label}.${name} PROPERTIES LABELS ${label})
endfunction()
