module github.com/mortise-dev/mortise/test/programs

go 1.26.4
