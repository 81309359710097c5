// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package simulated

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// life is how long a container runs and how it ends.
type life struct {
	ends     bool
	runFor   time.Duration
	exitCode int32
}

// lifeOf returns the life of a container that is not an init container. The pod's annotations take precedence, then the container's
// command, then the phases of its node for Jobs. Invalid values are ignored.
func lifeOf(pod *corev1.Pod, c *corev1.Container, takes Phases) life {
	ends := pod.Spec.RestartPolicy == corev1.RestartPolicyNever || pod.Spec.RestartPolicy == corev1.RestartPolicyOnFailure
	l, understood := lifeOfCommand(c)
	if !understood {
		l = life{runFor: pause}
		if takes.Completes != nil {
			l.runFor = *takes.Completes
		}
		owner := metav1.GetControllerOf(pod)
		l.ends = ends && owner != nil && owner.Kind == "Job"
	}
	if !ends {
		return l
	}
	if d, err := time.ParseDuration(pod.Annotations[AnnotationRunFor]); err == nil && d >= 0 {
		l.ends, l.runFor = true, d
	}
	if n, err := strconv.ParseInt(pod.Annotations[AnnotationExitCode], 10, 32); err == nil {
		l.exitCode = int32(n)
	}
	return l
}

// lifeOfInit returns the life of an init container: it ends immediately, unless its command sleeps or fails.
func lifeOfInit(c *corev1.Container) life {
	if l, ok := lifeOfCommand(c); ok {
		return l
	}
	return life{ends: true}
}

// lifeOfCommand returns the life of a container whose command is sleep, true or false, directly or in a shell script that consists of
// these, ":" and exit, separated by ";", "&&" or line ends.
func lifeOfCommand(c *corev1.Container) (l life, ok bool) {
	argv := slices.Concat(c.Command, c.Args)
	if len(c.Command) == 0 || len(argv) == 0 {
		return life{}, false // the image's entry point decides, and there is no image
	}
	if shell := program(argv[0]); shell != "sh" && shell != "bash" && shell != "ash" {
		exited, ok := l.command(argv)
		return l, ok && !exited
	}
	if len(argv) != 3 || argv[1] != "-c" {
		return life{}, false
	}
	l.ends = true
	script := strings.NewReplacer("&&", "\n&", ";", "\n").Replace(argv[2])
	for line := range strings.Lines(script) {
		line, and := strings.CutPrefix(strings.TrimSpace(line), "&")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if and && l.exitCode != 0 {
			continue // the previous command failed
		}
		exited, ok := l.command(words)
		if !ok {
			return life{}, false
		}
		if exited || !l.ends {
			break
		}
	}
	return l, true
}

// command adds one command to the life, and reports whether it ends the script.
func (l *life) command(words []string) (exited, ok bool) {
	l.ends, l.exitCode = true, 0
	switch name, args := program(words[0]), words[1:]; name {
	case "true", ":":
		return false, true
	case "false":
		l.exitCode = 1
		return false, true
	case "exit":
		if len(args) != 1 {
			return true, len(args) == 0
		}
		code, err := strconv.ParseUint(args[0], 10, 8)
		l.exitCode = int32(code)
		return true, err == nil
	case "sleep":
		for _, arg := range args {
			d, forever, ok := sleepTime(arg)
			if !ok {
				return false, false
			}
			l.runFor += d
			l.ends = l.ends && !forever
		}
		return false, len(args) > 0
	}
	return false, false
}

// program returns the base name of a command's first word.
func program(word string) string { return word[strings.LastIndexByte(word, '/')+1:] }

// sleepTime parses an argument of sleep(1): a number of seconds, or of minutes, hours or days with a suffix, or "infinity".
func sleepTime(arg string) (d time.Duration, forever, ok bool) {
	if arg == "infinity" || arg == "inf" {
		return 0, true, true
	}
	unit := time.Second
	if n := len(arg); n > 0 {
		if u, has := map[byte]time.Duration{'s': time.Second, 'm': time.Minute, 'h': time.Hour, 'd': 24 * time.Hour}[arg[n-1]]; has {
			arg, unit = arg[:n-1], u
		}
	}
	seconds, err := strconv.ParseFloat(arg, 64)
	if err != nil || seconds < 0 || math.IsNaN(seconds) {
		return 0, false, false
	}
	if seconds*unit.Seconds() > 100*365*24*3600 {
		return 0, true, true
	}
	return time.Duration(seconds * float64(unit)), false, true
}
